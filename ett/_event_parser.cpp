// Event log bytes -> lines with checked crc32, and the plain records among them as columns: steps, and what else a log
// has many of. No Python object is touched while the bytes are read, so the GIL is released. Whatever is not a plain
// record in canonical form (keys in ascending order, integers, short plain strings) is handed back as a byte range for
// json: this file decides nothing that ett/event_reader.py, the reference, would decide differently.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "_crc32.hpp"
#include "_plain_record.hpp"

namespace py = pybind11;

namespace {

constexpr size_t kTail = 9;  // a tab and eight hexadecimal digits
enum Kind : uint8_t { kOther = 0, kPlain = 1, kBadChecksum = 2 };

using namespace ett;

const Crc kCrc;

bool has_checksum(const char* line, size_t size) {
  if (size < kTail || line[size - kTail] != '\t') return false;
  uint32_t crc = kCrc.of(line, size - kTail);
  for (size_t i = 0; i < 8; ++i, crc <<= 4)
    if (line[size - 8 + i] != "0123456789abcdef"[crc >> 28]) return false;
  return true;
}

struct Value {
  bool is_text = false;
  int64_t number = 0;
  std::string_view text;
};

// One flat object; every method returns false on anything that is not in canonical plain form.
class Scanner {
 public:
  Scanner(const char* begin, const char* end) : p_(begin), end_(end) {}
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
  bool value(Value& out, bool may_be_bool) {
    if (p_ < end_ && *p_ == '"') return out.is_text = true, text(out.text);
    if (may_be_bool) return word("true") ? (out.number = 1, true) : word("false");
    return number(out.number);
  }

 private:
  bool word(std::string_view w) {
    if (static_cast<size_t>(end_ - p_) < w.size() || std::memcmp(p_, w.data(), w.size()) != 0) return false;
    p_ += w.size();
    return true;
  }
  bool number(int64_t& out) {
    const bool negative = take('-');
    const char* begin = p_;
    uint64_t n = 0;  // 20 digits may wrap around, and are refused
    while (p_ < end_ && *p_ >= '0' && *p_ <= '9' && p_ - begin < 20) n = n * 10 + static_cast<uint64_t>(*p_++ - '0');
    const auto digits = p_ - begin;
    if (digits == 0 || digits > 19 || n > INT64_MAX) return false;
    if ((digits > 1 && *begin == '0') || (negative && n == 0)) return false;
    out = negative ? -static_cast<int64_t>(n) : static_cast<int64_t>(n);
    return true;
  }
  const char* p_;
  const char* end_;
};

class Parser {
 public:
  std::vector<uint8_t> kinds;
  std::vector<int64_t> ends;  // of each line, its LF left out; a line begins one after the end of the one before
  std::vector<int64_t> rows;  // of each plain record kNumColumns, then the bits of the columns that it has
  std::vector<std::string> texts;
  bool has_unended_line = false;

  void parse(const char* data, size_t size) {
    size_t begin = 0;
    while (begin < size) {
      const auto* lf = static_cast<const char*>(std::memchr(data + begin, '\n', size - begin));
      if (lf == nullptr) break;
      const size_t end = lf - data;
      kinds.push_back(line(data + begin, end - begin));
      ends.push_back(static_cast<int64_t>(end));
      begin = end + 1;
    }
    has_unended_line = begin < size;
  }

 private:
  std::unordered_map<std::string, int64_t> text_ids_;
  std::array<std::pair<std::string_view, int64_t>, kNumColumns> last_;  // of each text column: it rarely changes

  uint8_t line(const char* data, size_t size) {
    if (!has_checksum(data, size)) return kBadChecksum;
    const size_t body = size - kTail;
    const size_t before = rows.size();
    if (plain(data, data + body)) return kPlain;
    rows.resize(before);
    return kOther;
  }

  bool plain(const char* begin, const char* end) {
    const size_t row = rows.size();
    rows.resize(row + kNumColumns + 1);
    int64_t present = 0;
    size_t column = 0;  // keys come in ascending order, so the search for the next one goes on from here
    Scanner scan(begin, end);
    std::string_view key;
    if (!scan.take('{')) return false;
    do {
      Value value;
      if (!scan.text(key) || !scan.take(':')) return false;
      while (column < kNumColumns && kColumns[column] != key) ++column;
      if (column == kNumColumns || !scan.value(value, is_bool_column(column))) return false;
      if (value.is_text != is_text_column(column) || (column == kEv && !is_plain_kind(value.text))) return false;
      rows[row + column] = value.is_text ? text_id(value.text, column) : value.number;
      present |= int64_t{1} << column++;
    } while (scan.take(','));
    rows[row + kNumColumns] = present;
    return scan.take('}') && scan.at_end() && (present >> kEv & 1);
  }

  static bool is_plain_kind(std::string_view ev) {
    for (const auto kind : kPlainKinds)
      if (kind == ev) return true;
    return false;
  }

  int64_t text_id(std::string_view text, size_t column) {
    auto& last = last_[column];
    if (last.first.data() != nullptr && last.first == text) return last.second;
    auto [found, is_new] = text_ids_.try_emplace(std::string(text), static_cast<int64_t>(texts.size()));
    if (is_new) texts.emplace_back(text);
    last = {text, found->second};  // the text lies in the bytes being parsed, which outlive the parser
    return found->second;
  }
};

template <typename T>
py::array_t<T> as_array(std::vector<T>&& values, py::ssize_t width) {
  auto* owned = new std::vector<T>(std::move(values));
  py::capsule owner(owned, [](void* p) { delete static_cast<std::vector<T>*>(p); });
  const auto rows = static_cast<py::ssize_t>(owned->size()) / width;
  if (width == 1) return py::array_t<T>({rows}, owned->data(), owner);
  return py::array_t<T>({rows, width}, owned->data(), owner);
}

py::tuple parse(const py::bytes& data) {
  char* bytes = nullptr;
  py::ssize_t size = 0;
  if (PyBytes_AsStringAndSize(data.ptr(), &bytes, &size) != 0) throw py::error_already_set();
  Parser parser;
  {
    py::gil_scoped_release release;
    parser.parse(bytes, static_cast<size_t>(size));
  }
  py::list texts;
  for (const auto& text : parser.texts) texts.append(text);
  return py::make_tuple(as_array(std::move(parser.kinds), 1), as_array(std::move(parser.ends), 1),
                        as_array(std::move(parser.rows), kNumColumns + 1), texts, parser.has_unended_line);
}

}  // namespace

PYBIND11_MODULE(_event_parser, m) {
  m.doc() = "Checked lines of an event log, plain records as columns; see ett/event_columns.py.";
  m.def("parse", &parse, py::arg("data"),
        "Return (kinds uint8 [lines], ends int64 [lines], rows int64 [plain records, columns + 1], texts, has_unended_line).");
  py::list columns, text_columns;
  for (size_t i = 0; i < kNumColumns; ++i) {
    columns.append(py::str(kColumns[i].data(), kColumns[i].size()));
    if (is_text_column(i)) text_columns.append(py::int_(i));
  }
  m.attr("COLUMNS") = columns;
  m.attr("TEXT_COLUMNS") = text_columns;
  m.attr("OTHER") = static_cast<int>(kOther);
  m.attr("PLAIN") = static_cast<int>(kPlain);
  m.attr("BAD_CHECKSUM") = static_cast<int>(kBadChecksum);
}
