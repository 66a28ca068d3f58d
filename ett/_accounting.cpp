// The accounting of ett/attempt_columns.py: a log's plain records as columns, and attempts swept natively. The rules
// are those of ett/attempt_timeline.py and its neighbours, which tests compare with this on any log.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "_attempt_sweep.hpp"

namespace py = pybind11;
using namespace ett;

namespace {

template <typename T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

// Take the lines of a chunk in their order. `kinds` are those of `lines`, or kPlainByJson where `given` has the next row,
// its texts by their place in `given_texts`. `others` has a row for each line that is no plain record: whether it is a
// record at all, seq, src, host, boot, pid, mono_ns. Returns which of those are new.
py::array_t<uint8_t> add_chunk(LogColumns& log, int64_t file, const Lines& lines, const Array<uint8_t>& kinds,
                               const Array<int64_t>& given, const std::vector<std::string>& given_texts,
                               const Array<int64_t>& others) {
  py::array_t<uint8_t> is_new(others.shape(0));
  const uint8_t* kind = kinds.data();
  const int64_t *next_given = given.data(), *other = others.data(), *value = lines.values.data();
  const uint32_t* layout_of = lines.layout_of.data();
  uint8_t* out = is_new.mutable_data();
  const auto num_lines = kinds.size();
  py::gil_scoped_release release;
  auto ids = [&](const std::vector<std::string>& texts) {
    std::vector<int64_t> found;
    for (const auto& text : texts) found.push_back(log.text_id(text));
    return found;
  };
  const std::vector<int64_t> local = ids(lines.texts), local_given = ids(given_texts);
  std::vector<LogColumns::Home> homes;
  for (const Layout& layout : lines.layouts) homes.push_back(log.home_of(file, layout.key, local));
  std::array<int64_t, kRowWidth> row{};
  for (py::ssize_t i = 0; i < num_lines; ++i) {
    if (kind[i] == kPlain) {
      const uint32_t layout = *layout_of++;
      for (uint8_t c : lines.layouts[layout].varying) row[c] = *value++;
      log.add_row(homes[layout], row.data());
    } else if (kind[i] == kPlainByJson) {
      log.add_row(file, next_given, local_given), next_given += kRowWidth;
    } else if (kind[i] == kOther) {
      *out++ = other[0] && log.add_number({other[2], other[3], other[4], other[5], file}, other[1], other[6]);
      other += 7;
    }
  }
  return is_new;
}

py::object value_of(const LogColumns& log, size_t column, int64_t value) {
  if (is_text_column(column)) return py::str(log.texts[value]);
  if (is_bool_column(column)) return py::bool_(value == 1);
  return py::int_(value);
}

py::dict fields(const LogColumns& log, size_t stream, size_t row) {
  const Stream& s = *log.streams.at(stream);
  StreamReader reader(&s);
  py::dict out;
  for (size_t c = 0; c < kNumColumns; ++c)
    if (s.has(c)) out[py::str(kColumns[c].data(), kColumns[c].size())] = value_of(log, c, reader.value(c, row));
  return out;
}

// What varies of many records of a stream: (names, their values record by record).
py::tuple rows_of(const LogColumns& log, size_t stream, const std::vector<size_t>& rows) {
  const Stream& s = *log.streams.at(stream);
  StreamReader reader(&s);
  py::list names;
  std::vector<size_t> columns;
  for (size_t c : kVarying)
    if (s.has(c)) names.append(py::str(kColumns[c].data(), kColumns[c].size())), columns.push_back(c);
  py::list out;
  for (size_t row : rows) {
    py::tuple values(columns.size());
    for (size_t i = 0; i < columns.size(); ++i) values[i] = value_of(log, columns[i], reader.value(columns[i], row));
    out.append(std::move(values));
  }
  return py::make_tuple(names, out);
}

py::dict dropped(const LogColumns& log) {
  std::map<std::array<int64_t, 4>, int64_t> most;  // by process: its later files carry on the count
  for (const auto& s : log.streams) {
    if (s->kind != 1 || !s->has(kDropped)) continue;
    DeltaReader reader(&s->columns[kDropped]);
    auto& own = most.try_emplace({s->text(kSrc), s->text(kHost), s->text(kBoot), s->key[kPid]}, 0).first->second;
    for (size_t i = 0; i < s->size(); ++i) own = std::max(own, reader[i]);
  }
  py::dict out;
  auto text = [&](int64_t id) { return py::str(id < 0 ? std::string() : log.texts[id]); };
  for (const auto& [process, count] : most)
    out[py::make_tuple(text(process[0]), text(process[1]), text(process[2]), process[3])] = count;
  return out;
}

// (file, kind, att, gen, rank or None, is_supervisors, host, boot, earliest row, latest row, its rows, earliest, latest)
py::list summary(const LogColumns& log) {
  py::list out;
  for (const auto& s : log.streams) {
    py::object rank = s->rank == kNoRank ? py::object(py::none()) : py::object(py::int_(s->rank));
    out.append(py::make_tuple(s->file, s->kind, s->att(), s->gen(), rank, s->is_supervisors, s->text(kHost), s->text(kBoot),
                              s->earliest_row, s->latest_row, s->size(), s->earliest, s->latest));
  }
  return out;
}

// A copy with the rows whose mono_ns is at most their stream's limit.
std::unique_ptr<LogColumns> cut(const LogColumns& log, const std::vector<int64_t>& limits) {
  auto kept = std::make_unique<LogColumns>();
  for (const auto& text : log.texts) kept->text_id(text);
  std::vector<int64_t> same(log.texts.size());
  for (size_t i = 0; i < same.size(); ++i) same[i] = static_cast<int64_t>(i);
  for (size_t i = 0; i < log.streams.size(); ++i) {
    const Stream& s = *log.streams[i];
    StreamReader reader(&s);
    std::array<int64_t, kRowWidth> row = s.key;
    for (size_t at = 0; at < s.size(); ++at) {
      if (reader.mono(at) > limits[i]) continue;
      for (size_t c : kVarying)
        if (s.has(c)) row[c] = reader.value(c, at);
      kept->add_row(s.file, row.data(), same);
    }
  }
  return kept;
}

struct PyPieces {
  PieceTable table;
  std::shared_ptr<AttemptSweep> sweep;
};

Facts facts_of(const py::dict& given) {
  Facts facts;
  facts.start = given["start"].cast<int64_t>(), facts.cut = given["cut"].cast<int64_t>();
  facts.end = given["end"].cast<int64_t>();
  facts.high = given["high"].is_none() ? kNone : given["high"].cast<int64_t>();
  facts.is_clean = given["is_clean"].cast<bool>(), facts.infer_compile = given["infer_compile"].cast<bool>();
  facts.has_time = given["has_time"].cast<bool>();
  facts.faults = given["faults"].cast<std::vector<int64_t>>();
  for (const auto& [begin, end] : given["unknown"].cast<std::vector<std::pair<py::object, py::object>>>())
    facts.unknown.emplace_back(begin.is_none() ? kNone : begin.cast<int64_t>(), end.is_none() ? kForever : end.cast<int64_t>());
  facts.restores = given["restores"].cast<std::map<int64_t, int64_t>>();
  facts.train_ends = given["train_ends"].cast<std::map<int64_t, int64_t>>();
  for (auto& [begin, end, gen, ranks] :
       given["worlds"].cast<std::vector<std::tuple<int64_t, int64_t, int64_t, std::vector<int64_t>>>>()) {
    World world;
    world.begin = begin, world.end = end, world.gen = gen, world.ranks = ranks;
    std::sort(world.ranks.begin(), world.ranks.end());
    facts.worlds.push_back(std::move(world));
  }
  return facts;
}

PyPieces run(const std::shared_ptr<AttemptSweep>& sweep, const py::dict& given, const std::vector<int64_t>& ranks,
             const Clocks& clocks, const std::unordered_map<std::string, int>& components,
             const py::object& settle_ns, const std::array<size_t, 3>& effort) {
  const int64_t settle = settle_ns.is_none() ? kNone : settle_ns.cast<int64_t>();
  Facts facts = facts_of(given);
  py::gil_scoped_release release;
  return {sweep->run(std::move(facts), ranks, clocks, components, settle, Effort{effort[0], effort[1], effort[2]}), sweep};
}

py::object or_none(int64_t value) { return value == kNone ? py::object(py::none()) : py::object(py::int_(value)); }

// A step as ett.step_credit.Step has it: gen, stretch, number, begin, end, stop, c0, c1, complete, open, recovered, record.
py::tuple step_tuple(AttemptSweep& sweep, int64_t rank, const StepRow& s) {
  int64_t ref = s.ref;
  if (ref & kExtra) ref = sweep.of_rank(rank)->extras[ref & ~kExtra].ref;
  py::object number = s.number == kForever ? py::object(py::none()) : py::object(py::int_(s.number));
  return py::make_tuple(rank, s.gen, s.stretch, number, s.begin, s.end, s.stop, or_none(s.c0), or_none(s.c1),
                        sweep.of_rank(rank)->is_complete(s), s.is_open, s.is_recovered, stream_of_ref(ref), row_of_ref(ref));
}

py::tuple arrays(const PyPieces& pieces, size_t begin, size_t end) {
  const size_t n = end - begin;
  std::array<py::array_t<int64_t>, 5> out;
  std::array<int64_t*, 5> data;
  for (size_t i = 0; i < 5; ++i) out[i] = py::array_t<int64_t>(n), data[i] = out[i].mutable_data();
  PieceTable::Reader reader(pieces.table);
  for (size_t i = 0; i < n; ++i) {
    const PieceRow row = reader.row(begin + i);
    data[0][i] = row.begin, data[1][i] = row.end, data[2][i] = row.label, data[3][i] = row.ref, data[4][i] = row.rank;
  }
  return py::make_tuple(out[0], out[1], out[2], out[3], out[4]);
}

std::map<int64_t, int64_t> measure(const PyPieces& pieces, const Intervals& kept) {
  std::array<int64_t, kFirstSpanLabel> sums{};
  std::map<int64_t, int64_t> found;  // of spans, then all that is not 0
  pieces.table.measure(kept, [&](const PieceRow& row, int64_t ns) {
    if (row.label < kFirstSpanLabel) sums[row.label] += ns;
    else found[row.label] += ns;
  });
  for (int64_t label = 0; label < kFirstSpanLabel; ++label)
    if (sums[label]) found[label] = sums[label];
  return found;
}

bool is_new_data(int64_t label) { return label <= kNewDataRecovered || label == kUnsavedTail; }

// The first instant at or after `time` inside `kept` at which new data is consumed; None where there is none.
py::object next_new_data(const PyPieces& pieces, const Intervals& kept, int64_t time) {
  PieceTable::Reader reader(pieces.table);
  for (size_t i = pieces.table.find(time); i < pieces.table.size(); ++i) {
    const PieceRow row = reader.row(i);
    if (!is_new_data(row.label)) continue;
    for (const auto& [begin, end] : kept) {
      const int64_t from = std::max({begin, row.begin, time}), until = std::min(end, row.end);
      if (from < until) return py::int_(from);
    }
  }
  return py::none();
}

// R14: effective time whose data lies above `kept` (None: above everything that there is) is unsaved.
PyPieces reclassified(const PyPieces& pieces, const py::object& kept_cursor, bool only_unsaved) {
  const int64_t kept = kept_cursor.is_none() ? kNone : kept_cursor.cast<int64_t>();
  const bool keeps_all = kept != kNone && pieces.sweep->high() <= kept;
  if (keeps_all && !only_unsaved) return pieces;
  PyPieces out{{}, pieces.sweep};
  out.table.tail = std::make_shared<PieceColumns>();
  auto& columns = *out.table.tail;
  out.table.end = pieces.table.end;
  constexpr int64_t kOutside = kUntrackedInit;  // a row that fills the time between two unsaved ones; never measured
  if (keeps_all) return columns.push(pieces.table.size() ? PieceTable::Reader(pieces.table).begin(0) : 0, kOutside, -1, 0), out;
  PieceTable::Reader reader(pieces.table);
  AttemptSweep& sweep = *pieces.sweep;
  py::gil_scoped_release release;
  for (size_t i = 0; i < pieces.table.size(); ++i) {
    const PieceRow row = reader.row(i);
    int64_t lost = row.end;
    if (row.label <= kNewDataRecovered) {
      const StepRow step = sweep.step_of(row.ref, row.rank);
      const int64_t at = kept == kNone ? step.begin : step.time_at(kept);
      lost = std::min(std::max(at, row.begin), row.end);
    }
    if (lost > row.begin && !only_unsaved) columns.push(row.begin, row.label, row.ref, row.rank);
    else if (lost > row.begin && (!columns.size() || columns.labels.back() != kOutside))
      columns.push(row.begin, kOutside, -1, 0);
    if (lost < row.end) columns.push(lost, kUnsavedTail, row.ref, row.rank);
  }
  return out;
}

size_t num_replayed(const PyPieces& pieces, const Intervals& kept) {
  std::set<std::pair<int64_t, int64_t>> steps;
  pieces.table.measure(kept, [&](const PieceRow& row, int64_t) {
    if (row.label != kReplay) return;
    const StepRow step = pieces.sweep->step_of(row.ref, row.rank);
    steps.emplace(step.gen, step.number);
  });
  return steps.size();
}

py::list steps_of(AttemptSweep& sweep) {
  py::list out;
  sweep.each_step([&](RankSweep& rank, const StepRow& s) { return out.append(step_tuple(sweep, rank.rank, s)), true; });
  return out;
}

// For each time: where the last complete step before it, or at it, stopped; None before the first.
py::list last_stops(AttemptSweep& sweep, const std::vector<int64_t>& times) {
  std::vector<int64_t> best(times.size(), kNone);
  sweep.each_complete_stop(times, best);
  py::list out;
  for (int64_t stop : best) out.append(or_none(stop));
  return out;
}

py::list first_begins(AttemptSweep& sweep, const std::vector<int64_t>& times) {
  py::list out;
  for (int64_t time : times) {
    const int64_t begin = sweep.first_begin(time);
    out.append(begin == kForever ? py::object(py::none()) : py::object(py::int_(begin)));
  }
  return out;
}

// Where the world size that ended steps tell changes, in order: (begin, world, stream, row).
py::list worlds(AttemptSweep& sweep) {
  py::list out;
  for (const auto& [begin, world, ref] : sweep.world_changes())
    out.append(py::make_tuple(begin, world, stream_of_ref(ref), row_of_ref(ref)));
  return out;
}

py::tuple span_of(AttemptSweep& sweep, int64_t rank, size_t index) {
  const SpanRow& span = sweep.of_rank(rank)->spans.at(index);
  return py::make_tuple(sweep.log().texts[span.name], span.was_closed, stream_of_ref(span.ref), row_of_ref(span.ref));
}

}  // namespace

PYBIND11_MODULE(_accounting, m) {
  m.doc() = "Logs as columns and attempts swept natively; see ett/attempt_columns.py.";
  py::class_<LogColumns>(m, "Log")
      .def(py::init<>())
      .def("add_chunk", &add_chunk)
      .def("add_row",
           [](LogColumns& log, int64_t file, const std::vector<int64_t>& row, const std::vector<std::string>& texts) {
             std::vector<int64_t> local;
             for (const auto& text : texts) local.push_back(log.text_id(text));
             return log.add_row(file, row.data(), local);
           })
      .def("add_number",
           [](LogColumns& log, int64_t file, int64_t seq, int64_t src, int64_t host, int64_t boot, int64_t pid, int64_t mono) {
             return log.add_number({src, host, boot, pid, file}, seq, mono);
           })
      .def("text_id", &LogColumns::text_id)
      .def("text", [](const LogColumns& log, size_t id) { return log.texts.at(id); })
      .def("fields", &fields)
      .def("rows_of", &rows_of)
      .def("summary", &summary)
      .def("dropped", &dropped)
      .def("cut", &cut)
      .def_readonly("num_malformed", &LogColumns::num_malformed)
      .def_readonly("num_duplicates", &LogColumns::num_duplicates)
      .def_readonly("num_rows", &LogColumns::num_rows)
      .def_readonly("is_odd", &LogColumns::is_odd)
      .def_readonly("outline", &LogColumns::outline)
      .def("outline_rows", &LogColumns::outline_rows)
      .def("latest_rows", &LogColumns::latest_rows)
      .def("span_and_latest_rows", &LogColumns::span_and_latest_rows)
      .def("has_inferred_span", &LogColumns::has_inferred_span)
      .def("file_of", [](const LogColumns& log, size_t stream) { return log.streams.at(stream)->file; })
      .def("clocks", [](const LogColumns& log) {
        std::set<std::pair<int64_t, int64_t>> clocks;
        for (const auto& s : log.streams) clocks.emplace(s->text(kHost), s->text(kBoot));
        return std::vector<std::pair<int64_t, int64_t>>(clocks.begin(), clocks.end());
      })
      .def("num_lost", &LogColumns::num_lost)
      .def("may_hold_copies", &LogColumns::may_hold_copies);
  py::class_<AttemptSweep, std::shared_ptr<AttemptSweep>>(m, "Attempt")
      .def(py::init<LogColumns&, int64_t>(), py::keep_alive<1, 2>())
      .def("run", &run)
      .def("high", [](const AttemptSweep& s) { return or_none(s.high()); })
      .def("last_cursor", [](const AttemptSweep& s) { return or_none(s.last_cursor()); })
      .def("has_recovered", &AttemptSweep::has_recovered)
      .def("has_inferred_samples", &AttemptSweep::has_inferred_samples)
      .def("has_doubted", &AttemptSweep::has_doubted)
      .def("steps_at",
           [](AttemptSweep& s, const std::vector<int64_t>& refs, const std::vector<int64_t>& ranks) {
             py::list out;
             for (size_t i = 0; i < refs.size(); ++i) out.append(step_tuple(s, ranks[i], s.step_of(refs[i], ranks[i])));
             return out;
           })
      .def("span", &span_of)
      .def("steps", &steps_of)
      .def("last_stops", &last_stops)
      .def("first_begins", &first_begins)
      .def("worlds", &worlds);
  py::class_<PyPieces>(m, "Pieces")
      .def("__len__", [](const PyPieces& p) { return p.table.size(); })
      .def("arrays", &arrays)
      .def("find", [](const PyPieces& p, int64_t time) { return p.table.find(time); })
      .def("measure", &measure)
      .def("next_new_data", &next_new_data)
      .def("num_replayed", &num_replayed)
      .def("reclassified", &reclassified);
  m.attr("PLAIN_BY_JSON") = static_cast<int>(kPlainByJson);
  m.attr("KINDS") = std::vector<std::string>(kPlainKinds.begin(), kPlainKinds.end());
  m.attr("EXTRA") = kExtra;
  m.attr("SPAN") = kSpan;
  m.attr("FIRST_SPAN_LABEL") = static_cast<int64_t>(kFirstSpanLabel);
  m.attr("LABELS_OF_SPAN") = kLabelsOfSpan;
}
