// Writes a value over the nulls of a column, in place and without the GIL. The reference is parquet_columns.py.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <cstring>

namespace py = pybind11;

namespace {

// Bit offset + i of `validity`, least significant bit first, says whether values[i] is one.
void fill_nulls(py::array_t<int64_t, py::array::c_style> values, const py::array_t<uint8_t, py::array::c_style>& validity,
                int64_t offset, int64_t null) {
  const int64_t num_values = values.size();
  if (offset < 0 || offset + num_values > validity.size() * 8) throw py::value_error("validity has too few bits");
  int64_t* value = values.mutable_data();
  const uint8_t* bits = validity.data();
  py::gil_scoped_release release;
  const auto is_null = [bits, offset](int64_t i) { return !((bits[(offset + i) >> 3] >> ((offset + i) & 7)) & 1); };
  int64_t i = 0;
  for (; i < num_values && ((offset + i) & 7); ++i)
    if (is_null(i)) value[i] = null;
  for (; i + 64 <= num_values; i += 64) {
    uint64_t word;
    std::memcpy(&word, bits + ((offset + i) >> 3), sizeof word);
    for (uint64_t nulls = ~word; nulls; nulls &= nulls - 1) value[i + __builtin_ctzll(nulls)] = null;
  }
  for (; i < num_values; ++i)
    if (is_null(i)) value[i] = null;
}

}  // namespace

PYBIND11_MODULE(_nulls, module) {
  module.def("fill_nulls", &fill_nulls, py::arg("values").noconvert(), py::arg("validity").noconvert(),
             py::arg("offset"), py::arg("null"));
}
