// A callable that runs one callback before and one after another function, and leaves no trace of itself: it has no
// Python frame, so a traceback that passes through it shows only the program's and the library's own lines; debuggers
// and coverage do not see its callbacks; and what its callbacks raise never reaches the program.

#include <pybind11/pybind11.h>

namespace py = pybind11;

namespace {

// Decides about an exception that a callback raised: true to drop it. Set by ett/hooks/around.py.
PyObject* judge = nullptr;

class WithoutTracing {
 public:
  WithoutTracing() : state_(PyThreadState_Get()) { PyThreadState_EnterTracing(state_); }
  ~WithoutTracing() { PyThreadState_LeaveTracing(state_); }
  WithoutTracing(const WithoutTracing&) = delete;
  WithoutTracing& operator=(const WithoutTracing&) = delete;

 private:
  PyThreadState* state_;
};

// Takes the pending exception, its traceback attached.
py::object taken_exception() {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace) PyException_SetTraceback(value, trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  return py::reinterpret_steal<py::object>(value);
}

// Calls back; None where the callback failed. Throws what a signal handler of the program raised meanwhile.
py::object quietly(const py::object& callback, const py::tuple& args) {
  py::object found, error;
  {
    WithoutTracing without;
    found = py::reinterpret_steal<py::object>(PyObject_Call(callback.ptr(), args.ptr(), nullptr));
    if (found) return found;
    error = taken_exception();
    if (judge) {
      py::object drop = py::reinterpret_steal<py::object>(PyObject_CallOneArg(judge, error.ptr()));
      if (drop && drop.ptr() == Py_True) return py::none();
      if (!drop) PyErr_Clear();
    }
  }
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw py::error_already_set();
}

class Around {
 public:
  Around(py::object function, py::object before, py::object after)
      : function_(std::move(function)), before_(std::move(before)), after_(std::move(after)) {}

  py::object call(const py::args& args, const py::kwargs& kwargs) const {
    py::object token = quietly(before_, py::make_tuple(args, kwargs));
    auto result = py::reinterpret_steal<py::object>(PyObject_Call(function_.ptr(), args.ptr(), kwargs.ptr()));
    if (token.is_none()) {
      if (!result) throw py::error_already_set();
      return result;
    }
    if (result) {
      quietly(after_, py::make_tuple(token, result, true));
      return result;
    }
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    try {
      quietly(after_, py::make_tuple(token, py::none(), false));
    } catch (py::error_already_set& newer) {
      Py_XDECREF(type);
      Py_XDECREF(value);
      Py_XDECREF(trace);
      throw;
    }
    PyErr_Restore(type, value, trace);
    throw py::error_already_set();
  }

  py::object function() const { return function_; }

 private:
  py::object function_, before_, after_;
};

class Quiet {
 public:
  explicit Quiet(py::object callback) : callback_(std::move(callback)) {}
  void call(const py::args& args) const { quietly(callback_, args); }

 private:
  py::object callback_;
};

}  // namespace

PYBIND11_MODULE(_around, module) {
  py::class_<Around>(module, "Around", py::dynamic_attr())
      .def(py::init<py::object, py::object, py::object>())
      .def("__call__", &Around::call)
      .def("__get__",
           [](const py::object& self, const py::object& instance, const py::object&) -> py::object {
             if (instance.is_none()) return self;
             return py::reinterpret_steal<py::object>(PyMethod_New(self.ptr(), instance.ptr()));
           },
           py::arg("instance").none(true), py::arg("owner").none(true) = py::none())
      .def("__reduce__", [](const py::object& self) { return self.attr("__qualname__"); })
      .def("__getattr__", [](const Around& self, const py::str& name) { return self.function().attr(name); })
      .def_property_readonly("original", &Around::function);
  py::class_<Quiet>(module, "Quiet").def(py::init<py::object>()).def("__call__", &Quiet::call);
  module.def("set_judge", [](const py::object& callback) {
    Py_XDECREF(judge);
    judge = callback.inc_ref().ptr();
  });
}
