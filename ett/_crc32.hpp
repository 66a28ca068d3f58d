// crc32 as zlib has it, of a line of the event log: 64 bytes at a time where the processor multiplies without carry, else by table.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define ETT_HAS_CARRYLESS 1
#endif

namespace ett {

class Crc {
 public:
  Crc() {
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int k = 0; k < 8; ++k) c = (c >> 1) ^ ((c & 1) ? 0xEDB88320u : 0u);
      table_[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; ++i)
      for (size_t k = 1; k < 8; ++k) table_[k][i] = (table_[k - 1][i] >> 8) ^ table_[0][table_[k - 1][i] & 0xFF];
#ifdef ETT_HAS_CARRYLESS
    is_carryless_ = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif
  }

  // `by_table`: for tests, which compare the two ways.
  uint32_t of(const char* data, size_t size, bool by_table = false) const {
    const auto* p = reinterpret_cast<const uint8_t*>(data);
    uint32_t c = 0xFFFFFFFFu;
#ifdef ETT_HAS_CARRYLESS
    if (is_carryless_ && size >= 64 && !by_table) {
      const size_t blocks = size & ~size_t{15};
      c = fold(p, blocks, c);
      p += blocks, size -= blocks;
    }
#endif
    for (; size >= 8; size -= 8, p += 8) {
      uint32_t low, high;
      std::memcpy(&low, p, 4);
      std::memcpy(&high, p + 4, 4);
      low ^= c;
      c = table_[7][low & 0xFF] ^ table_[6][(low >> 8) & 0xFF] ^ table_[5][(low >> 16) & 0xFF] ^ table_[4][low >> 24] ^
          table_[3][high & 0xFF] ^ table_[2][(high >> 8) & 0xFF] ^ table_[1][(high >> 16) & 0xFF] ^ table_[0][high >> 24];
    }
    for (; size; --size, ++p) c = (c >> 8) ^ table_[0][(c ^ *p) & 0xFF];
    return ~c;
  }

 private:
  std::array<std::array<uint32_t, 256>, 8> table_;
  bool is_carryless_ = false;

#ifdef ETT_HAS_CARRYLESS
  // Folding and Barrett reduction of Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ",
  // Intel 2009, with its constants for the reflected polynomial. At least 64 bytes, a multiple of 16.
  __attribute__((target("pclmul,sse4.1"))) static uint32_t fold(const uint8_t* p, size_t size, uint32_t crc) {
    auto load = [](const uint8_t* at) __attribute__((target("pclmul,sse4.1"))) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    };
    __m128i k = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    __m128i x1 = _mm_xor_si128(load(p), _mm_cvtsi32_si128(static_cast<int>(crc)));
    __m128i x2 = load(p + 16), x3 = load(p + 32), x4 = load(p + 48);
    for (p += 64, size -= 64; size >= 64; p += 64, size -= 64) {
      const __m128i y1 = _mm_clmulepi64_si128(x1, k, 0x00), y2 = _mm_clmulepi64_si128(x2, k, 0x00);
      const __m128i y3 = _mm_clmulepi64_si128(x3, k, 0x00), y4 = _mm_clmulepi64_si128(x4, k, 0x00);
      x1 = _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x1, k, 0x11), y1), load(p));
      x2 = _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x2, k, 0x11), y2), load(p + 16));
      x3 = _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x3, k, 0x11), y3), load(p + 32));
      x4 = _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x4, k, 0x11), y4), load(p + 48));
    }
    k = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    for (const __m128i next : {x2, x3, x4})
      x1 = _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x1, k, 0x11), _mm_clmulepi64_si128(x1, k, 0x00)), next);
    for (; size >= 16; p += 16, size -= 16)
      x1 = _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x1, k, 0x11), _mm_clmulepi64_si128(x1, k, 0x00)), load(p));
    const __m128i low = _mm_setr_epi32(~0, 0, ~0, 0);
    x1 = _mm_xor_si128(_mm_srli_si128(x1, 8), _mm_clmulepi64_si128(x1, k, 0x10));
    k = _mm_set_epi64x(0, 0x0163cd6124);
    x1 = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(x1, low), k, 0x00), _mm_srli_si128(x1, 4));
    k = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    x2 = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(x1, low), k, 0x10), low);
    x1 = _mm_xor_si128(x1, _mm_clmulepi64_si128(x2, k, 0x00));
    return static_cast<uint32_t>(_mm_extract_epi32(x1, 1));
  }
#endif
};

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the checksum reads words in little-endian order");

}  // namespace ett
