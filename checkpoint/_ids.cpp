// Ids to steps to be packed, and back; the format, and numpy code with the same result, are in checkpoint/id_codec.py.
// Pointers come as integers and are checked there. No call holds the GIL.

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

template <int kBytes>
void shuffle_steps(const int64_t* ids, int64_t steps, unsigned char* out) {
  for (int64_t i = 0; i < steps; ++i) {
    const uint64_t step = static_cast<uint64_t>(ids[i + 1]) - static_cast<uint64_t>(ids[i]);
    for (int byte = 0; byte < kBytes; ++byte) out[byte * steps + i] = static_cast<unsigned char>(step >> 8 * byte);
  }
}

// ids: int64 [num_rows >= 1], ascending; out: 8 * (num_rows - 1) bytes. Returns how many bytes each step took, 4 or 8.
int shuffle(Address ids_at, int64_t num_rows, Address out_at) {
  py::gil_scoped_release release;
  const auto* ids = reinterpret_cast<const int64_t*>(ids_at);
  auto* out = reinterpret_cast<unsigned char*>(out_at);
  uint64_t all = 0;
  for (int64_t i = 1; i < num_rows; ++i) all |= static_cast<uint64_t>(ids[i]) - static_cast<uint64_t>(ids[i - 1]);
  if (all >> 32) {
    shuffle_steps<8>(ids, num_rows - 1, out);
    return 8;
  }
  shuffle_steps<4>(ids, num_rows - 1, out);
  return 4;
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
  m.doc() = "Ids to steps to be packed, and back; see checkpoint/id_codec.py.";
  m.def("shuffle", &shuffle, "Write the steps, bytes of equal weight together, and return how many bytes each took.");
  m.def("unpack", &unpack, "Write the ids and return whether they ascend.");
}
