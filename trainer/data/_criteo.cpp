// Criteo lines -> columns, without the GIL. The reference is ett/trainer/data/criteo_lines.py: same answers, slower.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

namespace py = pybind11;

namespace {

constexpr int kInts = 13, kCategories = 26, kFields = 1 + kInts + kCategories;
constexpr int kCountDigits = 18, kCategoryDigits = 8;
constexpr int64_t kMissingId = int64_t{1} << 32;
constexpr int64_t kMissingCount = INT64_MIN;
enum Fault : int64_t { kNone = 0, kFieldCount = 1, kLabel = 2, kCount = 3, kCategory = 4 };

inline int64_t status(Fault fault, int64_t detail) { return fault + 8 * detail; }

inline bool parse_count(const char* text, const char* end, int64_t* out) {
  if (text == end) {
    *out = kMissingCount;
    return true;
  }
  const bool negative = *text == '-';
  text += negative;
  if (text == end || end - text > kCountDigits) return false;
  int64_t value = 0;
  for (; text != end; ++text) {
    const unsigned digit = static_cast<unsigned char>(*text) - '0';
    if (digit > 9) return false;
    value = value * 10 + digit;
  }
  *out = negative ? -value : value;
  return true;
}

inline bool parse_category(const char* text, const char* end, int64_t* out) {
  if (text == end) {
    *out = kMissingId;
    return true;
  }
  if (end - text > kCategoryDigits) return false;
  int64_t value = 0;
  for (; text != end; ++text) {
    const unsigned char c = *text;
    unsigned digit = c - '0';
    if (digit > 9) {
      const unsigned letter = (c | 0x20) - 'a';
      if (letter > 5) return false;
      digit = letter + 10;
    }
    value = value * 16 + digit;
  }
  *out = value;
  return true;
}

constexpr std::array<int8_t, 256> hex_digits() {
  std::array<int8_t, 256> digits{};
  for (int c = 0; c < 256; ++c) digits[c] = -1;
  for (int d = 0; d < 10; ++d) digits['0' + d] = static_cast<int8_t>(d);
  for (int d = 10; d < 16; ++d) digits['a' + d - 10] = digits['A' + d - 10] = static_cast<int8_t>(d);
  return digits;
}
constexpr std::array<int8_t, 256> kHexDigits = hex_digits();

// Parses a well-formed line at `text` in one pass and returns its end (at LF or `stop`), or null if it is malformed,
// with the outputs half written. Needs no bound: digits end at the latest at the zero byte that bytes have at `stop`.
const char* parse_well_formed(const char* text, const char* stop, float* label, int64_t* counts, int64_t* ids) {
  if ((text[0] != '0' && text[0] != '1') || text[1] != '\t') return nullptr;
  *label = static_cast<float>(text[0] - '0');
  text += 2;
  for (int i = 0; i < kInts; ++i, ++text) {
    if (*text == '\t') {
      counts[i] = kMissingCount;
      continue;
    }
    const bool negative = *text == '-';
    text += negative;
    const char* begin = text;
    uint64_t value = 0;
    for (unsigned digit; (digit = static_cast<unsigned char>(*text) - '0') <= 9; ++text) value = value * 10 + digit;
    if (text == begin || text - begin > kCountDigits || *text != '\t') return nullptr;
    counts[i] = negative ? -static_cast<int64_t>(value) : static_cast<int64_t>(value);
  }
  for (int i = 0; i < kCategories; ++i) {
    if (i && *text++ != '\t') return nullptr;
    const char* begin = text;
    uint64_t value = 0;
    for (int digit; (digit = kHexDigits[static_cast<unsigned char>(*text)]) >= 0; ++text) value = value * 16 + digit;
    if (text - begin > kCategoryDigits) return nullptr;
    ids[i] = text == begin ? kMissingId : static_cast<int64_t>(value);
  }
  const char* end = *text == '\r' ? text + 1 : text;
  return end == stop || *end == '\n' ? end : nullptr;
}

// Parses one line [text, end) into row outputs and returns its status: what is wrong first, in the order of the fields.
int64_t parse_line(const char* text, const char* end, float* label, int64_t* counts, int64_t* ids) {
  if (end != text && end[-1] == '\r') --end;
  const char* starts[kFields + 1];
  int64_t fields = 0;
  const char* cursor = text;
  starts[0] = text;
  while (true) {
    const char* tab = static_cast<const char*>(std::memchr(cursor, '\t', end - cursor));
    ++fields;
    if (tab == nullptr) break;
    cursor = tab + 1;
    if (fields < kFields) starts[fields] = cursor;
  }
  if (fields != kFields) return status(kFieldCount, fields);
  starts[kFields] = end + 1;
  if (starts[1] - starts[0] != 2 || (text[0] != '0' && text[0] != '1')) return status(kLabel, 1);
  *label = static_cast<float>(text[0] - '0');
  for (int i = 0; i < kInts; ++i)
    if (!parse_count(starts[1 + i], starts[2 + i] - 1, &counts[i])) return status(kCount, 2 + i);
  for (int i = 0; i < kCategories; ++i)
    if (!parse_category(starts[14 + i], starts[15 + i] - 1, &ids[i])) return status(kCategory, 15 + i);
  return kNone;
}

// Views of numpy arrays, taken while the GIL is held, for rows that are parsed without it.
struct Rows {
  explicit Rows(int64_t num_rows)
      : labels(num_rows), counts({num_rows, int64_t{kInts}}), ids({num_rows, int64_t{kCategories}}), states(num_rows) {}

  // Parses the line at `text` into a row and returns the line's end.
  struct Writer {
    float* label;
    int64_t *counts, *ids, *states;
    const char* write(int64_t row, const char* text, const char* stop) const {
      int64_t *counts_of = counts + row * kInts, *ids_of = ids + row * kCategories;
      const char* end = parse_well_formed(text, stop, label + row, counts_of, ids_of);
      states[row] = kNone;
      if (end == nullptr) {
        end = static_cast<const char*>(std::memchr(text, '\n', stop - text));
        if (end == nullptr) end = stop;
        label[row] = 0;
        std::memset(counts_of, 0, kInts * sizeof(int64_t));
        std::memset(ids_of, 0, kCategories * sizeof(int64_t));
        states[row] = parse_line(text, end, label + row, counts_of, ids_of);
      }
      return end;
    }
  };
  Writer writer() { return {labels.mutable_data(), counts.mutable_data(), ids.mutable_data(), states.mutable_data()}; }
  py::tuple tuple() const { return py::make_tuple(labels, counts, ids, states); }

  py::array_t<float> labels;
  py::array_t<int64_t> counts, ids, states;
};

struct Text {
  explicit Text(const py::bytes& block) {
    if (PyBytes_AsStringAndSize(block.ptr(), &data, &length) != 0) throw py::error_already_set();
  }
  char* data = nullptr;
  Py_ssize_t length = 0;
};

py::tuple parse(const py::bytes& block, int64_t num_lines) {
  const Text whole(block);
  Rows rows(num_lines);
  const Rows::Writer writer = rows.writer();
  int64_t line = 0;
  {
    py::gil_scoped_release release;
    const char *text = whole.data, *stop = whole.data + whole.length;
    for (; line < num_lines && text <= stop; ++line) text = writer.write(line, text, stop) + 1;
  }
  if (line != num_lines) throw py::value_error("the block holds fewer lines than num_lines");
  return rows.tuple();
}

using Integers = py::array_t<int64_t, py::array::c_style>;

py::tuple parse_rows(const py::bytes& block, const Integers& starts, const Integers& wanted) {
  const Text whole(block);
  const int64_t num_rows = wanted.size(), num_lines = starts.size();
  Rows rows(num_rows);
  const Rows::Writer writer = rows.writer();
  const int64_t *start_of = starts.data(), *line_of = wanted.data();
  bool is_inside = true;
  {
    py::gil_scoped_release release;
    for (int64_t row = 0; row < num_rows && is_inside; ++row) {
      const int64_t line = line_of[row];
      is_inside = line >= 0 && line < num_lines && start_of[line] >= 0 && start_of[line] <= whole.length;
      if (is_inside) writer.write(row, whole.data + start_of[line], whole.data + whole.length);
    }
  }
  if (!is_inside) throw py::value_error("a wanted line is not in the block");
  return rows.tuple();
}

py::array_t<int64_t> line_feeds(const py::bytes& block) {
  const Text whole(block);
  std::vector<int64_t> found;
  {
    py::gil_scoped_release release;
    found.reserve(whole.length / 128 + 16);
    const char *data = whole.data, *stop = data + whole.length, *at = data;
    while (at != stop && (at = static_cast<const char*>(std::memchr(at, '\n', stop - at))) != nullptr)
      found.push_back(at++ - data);
  }
  py::array_t<int64_t> feeds(static_cast<py::ssize_t>(found.size()));
  if (!found.empty()) std::memcpy(feeds.mutable_data(), found.data(), found.size() * sizeof(int64_t));
  return feeds;
}

}  // namespace

PYBIND11_MODULE(_criteo, module) {
  module.def("parse", &parse, py::arg("block"), py::arg("num_lines"),
             "(labels float32 [n], counts int64 [n, 13], ids int64 [n, 26], states int64 [n]) of the first n lines.");
  module.def("parse_rows", &parse_rows, py::arg("block"), py::arg("starts").noconvert(), py::arg("wanted").noconvert(),
             "The same of the wanted lines, which begin at starts[wanted].");
  module.def("line_feeds", &line_feeds, py::arg("block"), "Where the line feeds of the block are: int64 [n].");
}
