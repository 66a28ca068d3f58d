// The word that each row adds to a table's digest. The definition, and a numpy reference with the same bits, are in
// checkpoint/digest.py, which checks what is passed here: pointers come as integers. No call holds the GIL.

#include <pybind11/pybind11.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "_digest_words.hpp"
#include "ett/_processors.hpp"

namespace py = pybind11;

namespace {

using Address = uintptr_t;
using ett::fold;
using ett::mix;

struct Group {
  const unsigned char* rows;
  int64_t row_bytes;
  const uint64_t* keys;
  const uint64_t* odds;
};

FOR_EACH_PROCESSOR void add_group(const Group& group, int64_t num_rows, uint64_t* out) {
  const int64_t whole = group.row_bytes / 8, rest = group.row_bytes % 8;
  for (int64_t row = 0; row < num_rows; ++row) {
    const unsigned char* bytes = group.rows + row * group.row_bytes;
    uint64_t sum = 0;
    for (int64_t j = 0; j < whole; ++j) {
      uint64_t word;
      std::memcpy(&word, bytes + 8 * j, 8);
      sum += fold(word ^ group.keys[j]) * group.odds[j];
    }
    if (rest) {
      uint64_t word = 0;
      std::memcpy(&word, bytes + 8 * whole, rest);
      sum += fold(word ^ group.keys[whole]) * group.odds[whole];
    }
    out[row] += sum;
  }
}

constexpr int64_t kRowsAtOnce = 512;  // their words stay in the first cache between the groups

// groups: (address of the rows, bytes of a row, address of the keys, address of the odd factors); out: uint64 [num_rows].
uint64_t row_words(Address ids, int64_t num_rows, uint64_t id_seed, const py::list& groups, Address out) {
  std::vector<Group> parts;
  for (const auto& item : groups) {
    auto group = item.cast<py::tuple>();
    parts.push_back({reinterpret_cast<const unsigned char*>(group[0].cast<Address>()), group[1].cast<int64_t>(),
                     reinterpret_cast<const uint64_t*>(group[2].cast<Address>()),
                     reinterpret_cast<const uint64_t*>(group[3].cast<Address>())});
  }
  py::gil_scoped_release release;
  const auto* keys = reinterpret_cast<const uint64_t*>(ids);
  auto* words = reinterpret_cast<uint64_t*>(out);
  uint64_t total = 0;
  for (int64_t begin = 0; begin < num_rows; begin += kRowsAtOnce) {
    const int64_t count = num_rows - begin < kRowsAtOnce ? num_rows - begin : kRowsAtOnce;
    for (int64_t i = 0; i < count; ++i) words[begin + i] = mix(keys[begin + i] ^ id_seed);
    for (const Group& group : parts) {
      Group part = group;
      part.rows += begin * group.row_bytes;
      add_group(part, count, words + begin);
    }
    for (int64_t i = 0; i < count; ++i) total += words[begin + i] = mix(words[begin + i]);
  }
  return total;
}

}  // namespace

PYBIND11_MODULE(_digest, m) {
  m.doc() = "Words of rows in a table's digest; see checkpoint/digest.py.";
  m.def("row_words", &row_words, "Write each row's word and return their sum modulo 2^64.");
}
