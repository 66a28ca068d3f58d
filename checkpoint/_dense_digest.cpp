// What elements of a dense tensor add to its digest. The definition, and a numpy reference with the same bits, are in
// checkpoint/dense_digest.py, which checks what is passed here: pointers come as integers. No call holds the GIL.

#include <pybind11/pybind11.h>

#include <cstdint>
#include <cstring>

#include "_digest_words.hpp"
#include "ett/_processors.hpp"

namespace py = pybind11;

namespace {

using Address = uintptr_t;
using ett::fold;
using ett::mix;
using Sum = uint64_t (*)(const unsigned char*, int64_t, const uint64_t*, const uint64_t*);

#define SUM_OF(name, type)                                                                                        \
  FOR_EACH_PROCESSOR uint64_t name(const unsigned char* data, int64_t count, const uint64_t* keys,                \
                                   const uint64_t* odds) {                                                        \
    uint64_t sum = 0;                                                                                             \
    for (int64_t i = 0; i < count; ++i) {                                                                         \
      type value;                                                                                                 \
      std::memcpy(&value, data + i * static_cast<int64_t>(sizeof(type)), sizeof(type));                           \
      sum += fold(static_cast<uint64_t>(value) ^ keys[i]) * odds[i];                                              \
    }                                                                                                             \
    return sum;                                                                                                   \
  }

SUM_OF(sum_of_1, uint8_t)
SUM_OF(sum_of_2, uint16_t)
SUM_OF(sum_of_4, uint32_t)
SUM_OF(sum_of_8, uint64_t)

// keys, odds: uint64 [lanes]. Returns the sum over `count` elements of `item_bytes` from element `start` on.
uint64_t run_sum(Address data, int64_t item_bytes, int64_t count, int64_t start, Address keys, Address odds,
                 int64_t lanes) {
  py::gil_scoped_release release;
  const Sum sum_of = item_bytes == 1 ? sum_of_1 : item_bytes == 2 ? sum_of_2 : item_bytes == 4 ? sum_of_4 : sum_of_8;
  const auto* bytes = reinterpret_cast<const unsigned char*>(data);
  const auto* all_keys = reinterpret_cast<const uint64_t*>(keys);
  const auto* all_odds = reinterpret_cast<const uint64_t*>(odds);
  uint64_t total = 0;
  while (count > 0) {
    const int64_t block = start / lanes, lane = start % lanes;
    const int64_t num = count < lanes - lane ? count : lanes - lane;
    total += sum_of(bytes, num, all_keys + lane, all_odds + lane) * (mix(~static_cast<uint64_t>(block)) | 1);
    bytes += num * item_bytes;
    start += num;
    count -= num;
  }
  return total;
}

}  // namespace

PYBIND11_MODULE(_dense_digest, m) {
  m.doc() = "Sums over elements of dense tensors; see checkpoint/dense_digest.py.";
  m.def("run_sum", &run_sum, "Return what a run of elements adds to a tensor's digest, modulo 2^64.");
}
