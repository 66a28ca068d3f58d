// Bytes of an event log -> its lines, each checked, and the plain records among them by layout: what all records of one
// kind, writer, attempt and generation share is kept once, and of each record only the numbers that vary.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "_crc32.hpp"
#include "_plain_record.hpp"

namespace ett {

constexpr size_t kTail = 9;  // a tab and eight hexadecimal digits
enum LineKind : uint8_t { kOther = 0, kPlain = 1, kBadChecksum = 2, kPlainByJson = 3 };

struct Layout {
  std::array<int64_t, kRowWidth> key{};  // texts by their place in `texts`; columns that vary are 0
  std::vector<uint8_t> varying;          // columns that vary and are there, in order
  std::string literal;                   // a record's text without its numbers
  std::vector<uint32_t> ends;            // in `literal`: of what stands before each number, and of what stands last
};

struct Lines {
  std::vector<uint8_t> kinds;
  std::vector<int64_t> ends;  // of each line, its LF left out; a line begins one after the end of the one before
  std::vector<Layout> layouts;
  std::vector<uint32_t> layout_of;  // of each plain record
  std::vector<int64_t> values;      // of each plain record those that vary, back to back
  std::vector<std::string> texts;
  bool has_unended_line = false;
};

// One flat object; every method returns false on anything that is not in canonical plain form.
class Scanner {
 public:
  Scanner(const char* begin, const char* end) : p_(begin), end_(end) {}
  const char* at() const { return p_; }
  bool take(char c) { return p_ < end_ && *p_ == c && ++p_; }
  bool at_end() const { return p_ == end_; }
  bool text(std::string_view& out) {
    if (!take('"')) return false;
    const char* begin = p_;
    for (; p_ < end_ && *p_ != '"'; ++p_)
      if (*p_ == '\\' || static_cast<uint8_t>(*p_) < 0x20 || static_cast<uint8_t>(*p_) > 0x7E) return false;
    out = std::string_view(begin, p_ - begin);
    return take('"');
  }
  bool boolean(int64_t& out) { return word("true") ? (out = 1, true) : (out = 0, word("false")); }
  bool word(std::string_view w) {
    if (static_cast<size_t>(end_ - p_) < w.size() || std::memcmp(p_, w.data(), w.size()) != 0) return false;
    p_ += w.size();
    return true;
  }
  bool number(int64_t& out) {
    const bool negative = take('-');
    const char* begin = p_;
    uint64_t n = 0;  // 20 digits may wrap around, and are refused
    for (uint64_t eight; p_ - begin < 16 && end_ - p_ >= 8 && are_digits(eight = word_at(p_)); p_ += 8)
      n = n * 100'000'000 + value_of(eight);
    while (p_ < end_ && *p_ >= '0' && *p_ <= '9' && p_ - begin < 20) n = n * 10 + static_cast<uint64_t>(*p_++ - '0');
    const auto digits = p_ - begin;
    if (digits == 0 || digits > 19 || n > INT64_MAX) return false;
    if ((digits > 1 && *begin == '0') || (negative && n == 0)) return false;
    out = negative ? -static_cast<int64_t>(n) : static_cast<int64_t>(n);
    return true;
  }

 private:
  const char* p_;
  const char* end_;

  static uint64_t word_at(const char* p) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    return word;
  }
  static bool are_digits(uint64_t w) {  // the upper half of each byte is 3, and stays so when 6 is added
    constexpr uint64_t kUpper = 0xF0F0F0F0F0F0F0F0;
    return ((w & kUpper) | (((w + 0x0606060606060606) & kUpper) >> 4)) == 0x3333333333333333;
  }
  static uint64_t value_of(uint64_t w) {  // pairs of digits, then of pairs, then of those
    w -= 0x3030303030303030;
    w = w * 10 + (w >> 8);
    return (((w & 0x000000FF000000FF) * 0x000F424000000064) + (((w >> 16) & 0x000000FF000000FF) * 0x0000271000000001)) >> 32;
  }
};

class LineParser {
 public:
  explicit LineParser(Lines& out) : out_(out) {}

  void parse(const char* data, size_t size) {
    constexpr size_t kShort = 256, kNumbers = 8;  // a short line of a step, and how many numbers it has
    out_.kinds.reserve(size / kShort), out_.ends.reserve(size / kShort), out_.layout_of.reserve(size / kShort);
    out_.values.reserve(size / kShort * kNumbers);
    size_t begin = 0;
    while (begin < size) {
      const auto* lf = static_cast<const char*>(std::memchr(data + begin, '\n', size - begin));
      if (lf == nullptr) break;
      const size_t end = lf - data;
      out_.kinds.push_back(line(data + begin, end - begin));
      out_.ends.push_back(static_cast<int64_t>(end));
      begin = end + 1;
    }
    out_.has_unended_line = begin < size;
  }

 private:
  static constexpr size_t kRecent = 4;
  Lines& out_;
  std::array<uint32_t, kRecent> recent_{};  // layouts, the last used first
  size_t num_recent_ = 0;
  std::map<std::string, int64_t, std::less<>> text_ids_;
  std::map<std::array<int64_t, kRowWidth>, uint32_t> by_key_;

  static const Crc& crc() {
    static const Crc crc;
    return crc;
  }

  static bool has_checksum(const char* line, size_t size) {
    if (size < kTail || line[size - kTail] != '\t') return false;
    uint32_t found = crc().of(line, size - kTail);
    for (size_t i = 0; i < 8; ++i, found <<= 4)
      if (line[size - 8 + i] != "0123456789abcdef"[found >> 28]) return false;
    return true;
  }

  uint8_t line(const char* data, size_t size) {
    if (!has_checksum(data, size)) return kBadChecksum;
    const char* end = data + (size - kTail);
    const size_t before = out_.values.size();
    for (size_t i = 0; i < num_recent_; ++i) {
      if (follows(out_.layouts[recent_[i]], data, end)) return keep(i), kPlain;
      out_.values.resize(before);
    }
    if (plain(data, end)) return kPlain;
    out_.values.resize(before);
    return kOther;
  }

  // A record whose text differs from one before it in numbers alone: it is what the scan of all its keys would find.
  bool follows(const Layout& layout, const char* begin, const char* end) {
    Scanner scan(begin, end);
    const char* literal = layout.literal.data();
    uint32_t from = 0;
    for (size_t i = 0; i < layout.varying.size(); ++i) {
      int64_t value;
      if (!scan.word({literal + from, layout.ends[i] - from})) return false;
      if (!(is_bool_column(layout.varying[i]) ? scan.boolean(value) : scan.number(value))) return false;
      out_.values.push_back(value);
      from = layout.ends[i];
    }
    return scan.word({literal + from, layout.ends.back() - from}) && scan.at_end();
  }

  void keep(size_t i) {  // the layout at place `i` of the recent ones
    const uint32_t used = recent_[i];
    for (; i > 0; --i) recent_[i] = recent_[i - 1];
    recent_[0] = used;
    out_.layout_of.push_back(used);
  }

  bool plain(const char* begin, const char* end) {
    Layout found;
    size_t column = 0;  // keys come in ascending order, so the search for the next one goes on from here
    Scanner scan(begin, end);
    const char* from = begin;
    std::string_view key, text;
    if (!scan.take('{')) return false;
    do {
      if (!scan.text(key) || !scan.take(':')) return false;
      while (column < kNumColumns && kColumns[column] != key) ++column;
      if (column == kNumColumns) return false;
      const char* before = scan.at();
      int64_t value = 0;
      if (is_text_column(column)) {
        if (!scan.text(text) || (column == kEv && !is_plain_kind(text))) return false;
        value = text_id(text);
      } else if (!(is_bool_column(column) ? scan.boolean(value) : scan.number(value))) {
        return false;
      }
      if (is_varying(column)) {
        found.literal.append(from, before);
        found.ends.push_back(static_cast<uint32_t>(found.literal.size()));
        found.varying.push_back(static_cast<uint8_t>(column));
        out_.values.push_back(value);
        from = scan.at();
      } else {
        found.key[column] = value;
      }
      found.key[kRowWidth - 1] |= int64_t{1} << column++;
    } while (scan.take(','));
    if (!scan.take('}') || !scan.at_end() || !(found.key[kRowWidth - 1] >> kEv & 1)) return false;
    found.literal.append(from, end);
    found.ends.push_back(static_cast<uint32_t>(found.literal.size()));
    auto [known, is_new] = by_key_.try_emplace(found.key, static_cast<uint32_t>(out_.layouts.size()));
    if (is_new) out_.layouts.push_back(std::move(found));
    if (num_recent_ < kRecent) ++num_recent_;
    recent_[num_recent_ - 1] = known->second;
    keep(num_recent_ - 1);
    return true;
  }

  static bool is_plain_kind(std::string_view ev) {
    for (const auto kind : kPlainKinds)
      if (kind == ev) return true;
    return false;
  }

  int64_t text_id(std::string_view text) {
    auto found = text_ids_.find(text);
    if (found != text_ids_.end()) return found->second;
    out_.texts.emplace_back(text);
    return text_ids_[std::string(text)] = static_cast<int64_t>(out_.texts.size()) - 1;
  }
};

}  // namespace ett
