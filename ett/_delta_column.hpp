// A column of integers that grow regularly, in a few bits each: chunks of 256 values as their differences, less the
// smallest one, in 0, 1, 2, 4 or 8 bytes. Ten million steps take a tenth of what int64 columns would.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

namespace ett {

class DeltaColumn {
 public:
  static constexpr size_t kChunk = 256;

  void push(int64_t value) {
    tail_.push_back(value);
    if (tail_.size() == kChunk) seal();
  }
  size_t size() const { return chunks_.size() * kChunk + tail_.size(); }
  int64_t operator[](size_t i) const {
    if (i >= chunks_.size() * kChunk) return tail_[i - chunks_.size() * kChunk];
    int64_t values[kChunk];
    read_chunk(i / kChunk, values);
    return values[i % kChunk];
  }
  int64_t back() const { return (*this)[size() - 1]; }

 private:
  friend class DeltaReader;
  struct Chunk {
    int64_t first = 0, least = 0;
    std::unique_ptr<uint8_t[]> bytes;  // width bytes for each difference but the first
    uint8_t width = 0;
  };
  std::vector<Chunk> chunks_;
  std::vector<int64_t> tail_;

  // Differences wrap around like unsigned integers, so any values are stored exactly.
  void seal() {
    std::array<uint64_t, kChunk> delta{};
    int64_t least = INT64_MAX;
    for (size_t i = 1; i < kChunk; ++i) {
      delta[i] = static_cast<uint64_t>(tail_[i]) - static_cast<uint64_t>(tail_[i - 1]);
      least = std::min(least, static_cast<int64_t>(delta[i]));
    }
    uint64_t most = 0;
    for (size_t i = 1; i < kChunk; ++i) most = std::max(most, delta[i] -= static_cast<uint64_t>(least));
    Chunk chunk;
    chunk.first = tail_[0], chunk.least = least;
    chunk.width = most == 0 ? 0 : most <= UINT8_MAX ? 1 : most <= UINT16_MAX ? 2 : most <= UINT32_MAX ? 4 : 8;
    if (chunk.width) {
      chunk.bytes = std::make_unique<uint8_t[]>(chunk.width * (kChunk - 1));
      for (size_t i = 1; i < kChunk; ++i) std::memcpy(&chunk.bytes[chunk.width * (i - 1)], &delta[i], chunk.width);
    }
    chunks_.push_back(std::move(chunk));
    tail_.clear();
  }

  template <typename T>
  static void add_up(const Chunk& chunk, int64_t* out) {
    uint64_t value = static_cast<uint64_t>(chunk.first);
    out[0] = chunk.first;
    for (size_t i = 1; i < kChunk; ++i) {
      T delta;
      std::memcpy(&delta, &chunk.bytes[sizeof(T) * (i - 1)], sizeof(T));
      out[i] = static_cast<int64_t>(value += static_cast<uint64_t>(chunk.least) + delta);
    }
  }

  void read_chunk(size_t index, int64_t* out) const {
    const Chunk& chunk = chunks_[index];
    switch (chunk.width) {
      case 0:
        for (size_t i = 0; i < kChunk; ++i)
          out[i] = static_cast<int64_t>(static_cast<uint64_t>(chunk.first) + static_cast<uint64_t>(chunk.least) * i);
        break;
      case 1: add_up<uint8_t>(chunk, out); break;
      case 2: add_up<uint16_t>(chunk, out); break;
      case 4: add_up<uint32_t>(chunk, out); break;
      default: add_up<uint64_t>(chunk, out);
    }
  }
};

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "differences are cut to their low bytes");

// Reads a column that may grow meanwhile; keeps the last chunk, so that going forward costs little.
class DeltaReader {
 public:
  explicit DeltaReader(const DeltaColumn* column = nullptr) : column_(column) {}
  int64_t operator[](size_t i) {
    const size_t chunk = i / DeltaColumn::kChunk, sealed = column_->chunks_.size();
    if (chunk >= sealed) return column_->tail_[i - sealed * DeltaColumn::kChunk];
    if (chunk != chunk_) {
      if (!values_) values_ = std::make_unique<std::array<int64_t, DeltaColumn::kChunk>>();
      column_->read_chunk(chunk_ = chunk, values_->data());
    }
    return (*values_)[i % DeltaColumn::kChunk];
  }
  size_t size() const { return column_ ? column_->size() : 0; }

 private:
  const DeltaColumn* column_;
  size_t chunk_ = SIZE_MAX;
  std::unique_ptr<std::array<int64_t, DeltaColumn::kChunk>> values_;
};

}  // namespace ett
