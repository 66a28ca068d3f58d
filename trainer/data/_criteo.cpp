// Criteo lines -> columns, without the GIL. The reference is ett/trainer/data/criteo_lines.py: same answers, slower.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <cstring>

namespace py = pybind11;

namespace {

constexpr int kInts = 13, kCategories = 26, kFields = 1 + kInts + kCategories;
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
  if (text == end || end - text > 18) return false;
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
  if (end - text > 8) return false;
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

// Parses one line [text, end) into row outputs and returns its status.
int64_t parse_line(const char* text, const char* end, float* label, int64_t* counts, int64_t* ids) {
  if (end != text && end[-1] == '\r') --end;
  const char* starts[kFields + 1];
  int fields = 0;
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

py::tuple parse(const py::bytes& block, int64_t num_lines) {
  char* data = nullptr;
  Py_ssize_t length = 0;
  if (PyBytes_AsStringAndSize(block.ptr(), &data, &length) != 0) throw py::error_already_set();
  py::array_t<float> labels(num_lines);
  py::array_t<int64_t> counts({num_lines, int64_t{kInts}}), ids({num_lines, int64_t{kCategories}}), states(num_lines);
  float* label = labels.mutable_data();
  int64_t *count = counts.mutable_data(), *id = ids.mutable_data(), *state = states.mutable_data();
  int64_t line = 0;
  {
    py::gil_scoped_release release;
    const char *text = data, *stop = data + length;
    for (; line < num_lines && text <= stop; ++line) {
      const char* end = static_cast<const char*>(std::memchr(text, '\n', stop - text));
      if (end == nullptr) end = stop;
      label[line] = 0;
      std::memset(count + line * kInts, 0, kInts * sizeof(int64_t));
      std::memset(id + line * kCategories, 0, kCategories * sizeof(int64_t));
      state[line] = parse_line(text, end, label + line, count + line * kInts, id + line * kCategories);
      text = end + 1;
    }
  }
  if (line != num_lines) throw py::value_error("the block holds fewer lines than num_lines");
  return py::make_tuple(labels, counts, ids, states);
}

}  // namespace

PYBIND11_MODULE(_criteo, module) {
  module.def("parse", &parse, py::arg("block"), py::arg("num_lines"),
             "(labels float32 [n], counts int64 [n, 13], ids int64 [n, 26], states int64 [n]) of the first n lines.");
}
