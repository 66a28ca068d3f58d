// How 64-bit words are mixed into digests; the definitions are in checkpoint/digest.py.
#pragma once

#include <cstdint>

namespace ett {

inline uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ x >> 27) * 0x94D049BB133111EBull;
  return x ^ x >> 31;
}

inline uint64_t fold(uint64_t x) {
  x = (x ^ x >> 32) * 0xD6E8FEB86659FD93ull;
  return x ^ x >> 32;
}

}  // namespace ett
