// The checksum of a line of the event log: zlib's crc32, eight bytes at a time.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace ett {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the checksum reads words in little-endian order");

struct Crc {
  std::array<std::array<uint32_t, 256>, 8> table;
  Crc() {
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int k = 0; k < 8; ++k) c = (c >> 1) ^ ((c & 1) ? 0xEDB88320u : 0u);
      table[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; ++i)
      for (size_t k = 1; k < 8; ++k) table[k][i] = (table[k - 1][i] >> 8) ^ table[0][table[k - 1][i] & 0xFF];
  }
  uint32_t of(const char* data, size_t size) const {
    const auto* p = reinterpret_cast<const uint8_t*>(data);
    uint32_t c = 0xFFFFFFFFu;
    for (; size >= 8; size -= 8, p += 8) {
      uint32_t low, high;
      std::memcpy(&low, p, 4);
      std::memcpy(&high, p + 4, 4);
      low ^= c;
      c = table[7][low & 0xFF] ^ table[6][(low >> 8) & 0xFF] ^ table[5][(low >> 16) & 0xFF] ^ table[4][low >> 24] ^
          table[3][high & 0xFF] ^ table[2][(high >> 8) & 0xFF] ^ table[1][(high >> 16) & 0xFF] ^ table[0][high >> 24];
    }
    for (; size; --size, ++p) c = (c >> 8) ^ table[0][(c ^ *p) & 0xFF];
    return ~c;
  }
};

}  // namespace ett
