// Packed ids to ids; the format, and numpy code with the same result, are in checkpoint/id_codec.py. Pointers come as
// integers and are checked there. No call holds the GIL.

#include <pybind11/pybind11.h>

#include <cstdint>

namespace py = pybind11;

namespace {

using Address = uintptr_t;

template <int kBytes>
bool unpack_steps(const unsigned char* packed, int64_t num_rows, uint64_t first, int64_t* ids) {
  const int64_t steps = num_rows - 1;
  uint64_t id = first;
  bool ascends = true;
  ids[0] = static_cast<int64_t>(id);
  for (int64_t i = 0; i < steps; ++i) {
    uint64_t step = 0;
    for (int byte = 0; byte < kBytes; ++byte) step |= static_cast<uint64_t>(packed[byte * steps + i]) << 8 * byte;
    id += step;
    ids[i + 1] = static_cast<int64_t>(id);
    ascends &= ids[i + 1] > ids[i];
  }
  return ascends;
}

// packed: item_bytes * (num_rows - 1) bytes, all lowest bytes first; out: int64 [num_rows]. Returns whether they ascend.
bool unpack(Address packed, int item_bytes, int64_t num_rows, int64_t first, Address out) {
  py::gil_scoped_release release;
  const auto* from = reinterpret_cast<const unsigned char*>(packed);
  auto* ids = reinterpret_cast<int64_t*>(out);
  const auto start = static_cast<uint64_t>(first);
  return item_bytes == 4 ? unpack_steps<4>(from, num_rows, start, ids) : unpack_steps<8>(from, num_rows, start, ids);
}

}  // namespace

PYBIND11_MODULE(_ids, m) {
  m.doc() = "Packed ids to ids; see checkpoint/id_codec.py.";
  m.def("unpack", &unpack, "Write the ids and return whether they ascend.");
}
