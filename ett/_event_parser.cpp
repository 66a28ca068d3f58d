// Event log bytes -> lines with checked crc32, and the plain records among them: steps, and what else a log has many
// of. No Python object is touched while the bytes are read, so the GIL is released. Whatever is not a plain record in
// canonical form (keys in ascending order, integers, short plain strings) is handed back as a byte range for json: this
// file decides nothing that ett/event_reader.py, the reference, would decide differently.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <set>

#include "_line_parser.hpp"

namespace py = pybind11;
using namespace ett;

namespace {

std::unique_ptr<Lines> parse(const py::bytes& data) {
  char* bytes = nullptr;
  py::ssize_t size = 0;
  if (PyBytes_AsStringAndSize(data.ptr(), &bytes, &size) != 0) throw py::error_already_set();
  auto lines = std::make_unique<Lines>();
  py::gil_scoped_release release;
  LineParser(*lines).parse(bytes, static_cast<size_t>(size));
  return lines;
}

// A row for each plain record: kNumColumns, then the bits of the columns that it has.
py::array_t<int64_t> rows(const Lines& lines) {
  py::array_t<int64_t> out({static_cast<py::ssize_t>(lines.layout_of.size()), static_cast<py::ssize_t>(kRowWidth)});
  int64_t* row = out.mutable_data();
  const int64_t* value = lines.values.data();
  for (uint32_t index : lines.layout_of) {
    const Layout& layout = lines.layouts[index];
    std::copy(layout.key.begin(), layout.key.end(), row);
    for (uint8_t c : layout.varying) row[c] = *value++;
    row += kRowWidth;
  }
  return out;
}

// Schema versions of the plain records, each once; None where one has none.
py::list versions(const Lines& lines) {
  std::set<int64_t> found;
  bool has_none = false;
  for (const Layout& layout : lines.layouts) {
    if (layout.key[kRowWidth - 1] >> kV & 1) found.insert(layout.key[kV]);
    else has_none = true;
  }
  py::list out;
  if (has_none) out.append(py::none());
  for (int64_t version : found) out.append(version);
  return out;
}

}  // namespace

PYBIND11_MODULE(_event_parser, m) {
  m.doc() = "Checked lines of an event log, plain records by layout; see ett/event_columns.py.";
  py::class_<Lines>(m, "Lines")
      .def_property_readonly(
          "kinds", [](const Lines& l) { return py::bytes(reinterpret_cast<const char*>(l.kinds.data()), l.kinds.size()); })
      .def_property_readonly(
          "ends",
          [](const py::object& self) {
            const auto& ends = self.cast<const Lines&>().ends;
            return py::array_t<int64_t>(static_cast<py::ssize_t>(ends.size()), ends.data(), self);
          })
      .def("rows", &rows)
      .def("versions", &versions)
      .def_readonly("texts", &Lines::texts)
      .def_readonly("has_unended_line", &Lines::has_unended_line);
  m.def("parse", &parse, py::arg("data"), "Return the lines of `data`; the GIL is released.");
  m.def(
      "crc32",
      [](const std::string& data, bool by_table) { return Crc().of(data.data(), data.size(), by_table); },
      py::arg("data"), py::arg("by_table") = false);
  py::list columns;
  for (const auto column : kColumns) columns.append(py::str(column.data(), column.size()));
  m.attr("COLUMNS") = columns;
  m.attr("OTHER") = static_cast<int>(kOther);
  m.attr("PLAIN") = static_cast<int>(kPlain);
  m.attr("BAD_CHECKSUM") = static_cast<int>(kBadChecksum);
}
