// Bits of rows: set, cleared and listed. checkpoint/policy/row_map.py checks what is passed here, and has the same in
// numpy: pointers come as integers. No call holds the GIL.

#include <pybind11/pybind11.h>

#include <cstdint>
#include <cstring>

namespace py = pybind11;

namespace {

using Address = uintptr_t;

constexpr int64_t kAhead = 24;  // of random words asked for before they are needed; flat from 16 to 48

// Returns the place of the first slot that is not below num_slots, where it has stopped; else count.
template <bool kSet>
int64_t change(Address words_at, int64_t num_slots, Address slots_at, int64_t count) {
  py::gil_scoped_release release;
  auto* words = reinterpret_cast<uint64_t*>(words_at);
  const auto* slots = reinterpret_cast<const uint64_t*>(slots_at);
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) __builtin_prefetch(words + (slots[i + kAhead] >> 6), 1);
    if (slots[i] >= static_cast<uint64_t>(num_slots)) return i;
    const uint64_t bit = uint64_t{1} << (slots[i] & 63);
    if (kSet) {
      words[slots[i] >> 6] |= bit;
    } else {
      words[slots[i] >> 6] &= ~bit;
    }
  }
  return count;
}

// out: int64 [number of set bits], ascending.
void list(Address words_at, int64_t num_words, Address out) {
  py::gil_scoped_release release;
  const auto* words = reinterpret_cast<const uint64_t*>(words_at);
  auto* next = reinterpret_cast<int64_t*>(out);
  for (int64_t i = 0; i < num_words; ++i) {
    for (uint64_t left = words[i]; left; left &= left - 1) *next++ = (i << 6) + __builtin_ctzll(left);
  }
}

// out: int64 [number of slots that are not set], the places of those slots, ascending.
int64_t unmarked(Address words_at, Address slots_at, int64_t count, Address out) {
  py::gil_scoped_release release;
  const auto* words = reinterpret_cast<const uint64_t*>(words_at);
  const auto* slots = reinterpret_cast<const uint64_t*>(slots_at);
  auto* next = reinterpret_cast<int64_t*>(out);
  int64_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) __builtin_prefetch(words + (slots[i + kAhead] >> 6));
    next[found] = i;
    found += !(words[slots[i] >> 6] >> (slots[i] & 63) & 1);
  }
  return found;
}

int64_t count(Address words_at, int64_t num_words) {
  py::gil_scoped_release release;
  const auto* words = reinterpret_cast<const uint64_t*>(words_at);
  int64_t total = 0;
  for (int64_t i = 0; i < num_words; ++i) total += __builtin_popcountll(words[i]);
  return total;
}

// Replaces each byte by what `next` (256 bytes) has for it; most are 0, and next[0] is 0.
void age(Address bytes_at, int64_t num_bytes, Address next_at) {
  py::gil_scoped_release release;
  auto* bytes = reinterpret_cast<uint8_t*>(bytes_at);
  const auto* next = reinterpret_cast<const uint8_t*>(next_at);
  int64_t i = 0;
  for (; i + 8 <= num_bytes; i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes + i, 8);
    if (!word) continue;
    for (int64_t k = i; k < i + 8; ++k) bytes[k] = next[bytes[k]];
  }
  for (; i < num_bytes; ++i) bytes[i] = next[bytes[i]];
}

}  // namespace

PYBIND11_MODULE(_row_map, module) {
  module.def("mark", &change<true>);
  module.def("clear", &change<false>);
  module.def("unmarked", &unmarked);
  module.def("list", &list);
  module.def("count", &count);
  module.def("age", &age);
}
