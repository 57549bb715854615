// The extension module: matrices, the decoder, and single kernels for tests.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <mutex>
#include <stdexcept>

#include "decoder.h"

namespace py = pybind11;
using namespace firstlight;

namespace {

template <class T>
using Array = py::array_t<T, py::array::c_style>;

std::shared_ptr<Matrix> from_blocks(const std::string& type, const Array<std::uint8_t>& rows, int inputs) {
    Format format = type == "Q8_0" ? Format::q8 : Format::q4;
    std::size_t block = block_bytes(type);
    if (rows.ndim() != 2 || inputs % kGroup || static_cast<std::size_t>(rows.shape(1)) != inputs / kGroup * block)
        throw std::invalid_argument("rows of " + type + " do not hold " + std::to_string(inputs) + " inputs");
    auto matrix = std::make_shared<Matrix>(format, static_cast<int>(rows.shape(0)), inputs);
    py::gil_scoped_release released;
    matrix->pack_blocks(type, rows.data());
    return matrix;
}

std::shared_ptr<Matrix> from_floats(const std::string& format, const Array<float>& rows) {
    if (rows.ndim() != 2) throw std::invalid_argument("weights are not a matrix");
    auto matrix = std::make_shared<Matrix>(format_named(format), static_cast<int>(rows.shape(0)),
                                           static_cast<int>(rows.shape(1)));
    py::gil_scoped_release released;
    matrix->pack_floats(rows.data());
    return matrix;
}

Array<float> unpacked(const Matrix& matrix) {
    Array<float> out({matrix.outputs, matrix.inputs});
    for (int output = 0; output < matrix.outputs; ++output) matrix.row(output, out.mutable_data(output, 0));
    return out;
}

template <class T>
void require_length(const Array<T>& array, py::ssize_t length, const char* name) {
    if (array.ndim() != 1 || array.shape(0) != length)
        throw std::invalid_argument(std::string(name) + " has " + std::to_string(array.size()) + " values, expected " +
                                    std::to_string(length));
}

// Calls from several threads wait for each other: there is one step's memory, and one team.
class PyDecoder {
public:
    PyDecoder(const std::string& kernels, int threads, Config config)
        : config_(config), decoder_(kernels, threads, std::move(config)) {}

    void add(Numbers attention_norm, Weights qkv, Numbers qkv_bias, Numbers q_norm, Numbers k_norm, Weights output,
             Numbers mlp_norm, Weights gate_up, Weights down) {
        std::lock_guard lock(busy_);
        decoder_.add({std::move(attention_norm), std::move(qkv), std::move(qkv_bias), std::move(q_norm),
                      std::move(k_norm), std::move(output), std::move(mlp_norm), std::move(gate_up), std::move(down)});
        ++layers_;
    }

    void end(Weights embedding, Numbers norm, Weights head) {
        std::lock_guard lock(busy_);
        decoder_.end(std::move(embedding), std::move(norm), std::move(head));
    }

    void run(const Array<std::int64_t>& ids, const Array<std::int64_t>& positions, const Array<std::int64_t>& slots,
             const Array<std::int32_t>& spans, const Array<std::int32_t>& tables,
             const Array<std::int32_t>& table_offsets, const Array<std::int64_t>& logit_rows, py::array pages,
             Array<float>& logits) {
        Step step{};
        step.rows = static_cast<int>(ids.size());
        require_length(positions, step.rows, "positions");
        require_length(slots, step.rows, "slots");
        if (spans.ndim() != 2 || spans.shape(1) != 3) throw std::invalid_argument("spans are not [n, 3]");
        step.spans = static_cast<int>(spans.shape(0));
        require_length(table_offsets, step.spans + 1, "table_offsets");
        check_offsets(table_offsets, tables.size());
        step.wanted = static_cast<int>(logit_rows.size());
        if (logits.ndim() != 2 || logits.shape(0) != step.wanted || logits.shape(1) != config_.vocab)
            throw std::invalid_argument("logits are not [wanted, vocab]");
        check_pages(pages);
        step.ids = ids.data();
        step.positions = positions.data();
        step.slots = slots.data();
        step.span = reinterpret_cast<const Span*>(spans.data());
        step.tables = tables.data();
        step.table_offsets = table_offsets.data();
        step.logit_rows = logit_rows.data();
        step.pages = static_cast<std::uint16_t*>(pages.mutable_data());
        step.blocks = static_cast<int>(pages.shape(2));
        step.logits = logits.mutable_data();
        py::gil_scoped_release released;
        std::lock_guard lock(busy_);  // let go of before the interpreter is waited for
        decoder_.run(step);
    }

    Array<std::int64_t> sample(const Array<float>& logits, const Array<Draw>& draws,
                               const Array<std::int64_t>& bias_ids, const Array<float>& biases,
                               const Array<std::int64_t>& seen, const Array<std::int64_t>& counted,
                               const Array<float>& counts) {
        int rows = static_cast<int>(draws.size());
        require_length(draws, rows, "draws");
        if (logits.ndim() != 2 || logits.shape(0) != rows || logits.shape(1) != config_.vocab)
            throw std::invalid_argument("logits are not [draws, vocab]");
        py::ssize_t lengths[3] = {};
        for (int row = 0; row < rows; ++row) {
            const Draw& draw = draws.data()[row];
            lengths[0] += draw.biases;
            lengths[1] += draw.seen;
            lengths[2] += draw.counted;
        }
        require_length(bias_ids, lengths[0], "bias_ids");
        require_length(biases, lengths[0], "biases");
        require_length(seen, lengths[1], "seen");
        require_length(counted, lengths[2], "counted");
        require_length(counts, lengths[2], "counts");
        Lists lists{bias_ids.data(), biases.data(), seen.data(), counted.data(), counts.data()};
        Array<std::int64_t> ids(rows);
        std::int64_t* to = ids.mutable_data();
        {
            py::gil_scoped_release released;
            std::lock_guard lock(busy_);
            decoder_.sample(logits.data(), draws.data(), rows, lists, to);
        }
        return ids;
    }

private:
    static void check_offsets(const Array<std::int32_t>& offsets, py::ssize_t end) {
        std::int32_t before = 0;
        for (py::ssize_t i = 0; i < offsets.shape(0); ++i) {
            if (offsets.at(i) < before || offsets.at(i) > end) throw std::invalid_argument("table_offsets do not ascend");
            before = offsets.at(i);
        }
    }

    void check_pages(const py::array& pages) const {
        const Config& c = config_;
        bool fits = pages.ndim() == 6 && pages.shape(0) == layers_ && pages.shape(1) == 2 &&
                    pages.shape(3) == c.kv_heads && pages.shape(4) * pages.shape(5) == kBlock * c.head_dim &&
                    pages.dtype().char_() == 'e' && pages.dtype().byteorder() == '=' && (pages.flags() & py::array::c_style) && pages.writeable();
        if (!fits) throw std::invalid_argument("pages are not halves [layers, 2, blocks, kv_heads, 16, head_dim]");
    }

    Config config_;
    Decoder decoder_;
    std::mutex busy_;
    int layers_ = 0;
};

// rows · Wᵀ by the kernels of one name: for tests.
Array<float> matmul(const std::string& name, const Matrix& weights, const Array<float>& rows) {
    const Kernels& kernels = kernels_named(name);
    if (rows.ndim() != 2 || rows.shape(1) != weights.inputs) throw std::invalid_argument("rows do not fit the weights");
    int count = static_cast<int>(rows.shape(0));
    Activations x;
    x.reserve(count, weights.inputs);
    for (int row = 0; row < count; ++row)
        kernels.prepare(x, row, rows.data(row, 0), nullptr, 0, quantized(weights.format));
    Array<float> out({count, weights.outputs});
    auto open = aligned<std::uint8_t>(open_bytes(weights.inputs));
    kernels.matmul(weights, x, count, 0, weights.panels, {Finish::store, out.mutable_data(), weights.outputs, nullptr},
                   open.get());
    return out;
}

}  // namespace

PYBIND11_MODULE(_native, module) {
    module.doc() = "Kernels in C++ for CPUs with AVX2 or AVX-512.";
    module.def("available", [] {
        std::vector<std::string> names;
        for (const Kernels* const* known = available_kernels(); *known; ++known) names.push_back((*known)->name);
        return names;
    });
    PYBIND11_NUMPY_DTYPE(Draw, seed, top_p, min_p, top_k, position, choice, temperature, repetition, presence, frequency,
                         biases, seen, counted);
    module.attr("DRAW") = py::dtype::of<Draw>();
    module.attr("NOT_FINITE") = kNotFinite;
    module.attr("NONE_IS_LEFT") = kNoneIsLeft;
    py::class_<Matrix, std::shared_ptr<Matrix>>(module, "Matrix")
        .def_static("from_blocks", &from_blocks, py::arg("type"), py::arg("rows").noconvert(), py::arg("inputs"))
        .def_static("from_floats", &from_floats, py::arg("format"), py::arg("rows").noconvert())
        .def_property_readonly("format", [](const Matrix& matrix) { return name_of(matrix.format); })
        .def_property_readonly("nbytes", &Matrix::bytes)
        .def("unpacked", &unpacked);
    py::class_<PyDecoder>(module, "Decoder")
        .def(py::init([](const std::string& kernels, int threads, int heads, int kv_heads, int head_dim, int hidden,
                         int intermediate, int vocab, float rms_eps, std::vector<double> frequencies) {
                 return std::make_unique<PyDecoder>(
                     kernels, threads,
                     Config{heads, kv_heads, head_dim, hidden, intermediate, vocab, rms_eps, std::move(frequencies)});
             }),
             py::kw_only(), py::arg("kernels"), py::arg("threads"), py::arg("heads"), py::arg("kv_heads"),
             py::arg("head_dim"), py::arg("hidden"), py::arg("intermediate"), py::arg("vocab"), py::arg("rms_eps"),
             py::arg("frequencies"))
        .def("add", &PyDecoder::add, py::kw_only(), py::arg("attention_norm"), py::arg("qkv"), py::arg("qkv_bias"),
             py::arg("q_norm"), py::arg("k_norm"), py::arg("output"), py::arg("mlp_norm"), py::arg("gate_up"),
             py::arg("down"))
        .def("end", &PyDecoder::end, py::kw_only(), py::arg("embedding"), py::arg("norm"), py::arg("head"))
        .def("run", &PyDecoder::run, py::kw_only(), py::arg("ids").noconvert(), py::arg("positions").noconvert(),
             py::arg("slots").noconvert(), py::arg("spans").noconvert(), py::arg("tables").noconvert(),
             py::arg("table_offsets").noconvert(), py::arg("logit_rows").noconvert(), py::arg("pages"),
             py::arg("logits").noconvert())
        .def("sample", &PyDecoder::sample, py::kw_only(), py::arg("logits").noconvert(), py::arg("draws").noconvert(),
             py::arg("bias_ids").noconvert(), py::arg("biases").noconvert(), py::arg("seen").noconvert(),
             py::arg("counted").noconvert(), py::arg("counts").noconvert());
    module.def("matmul", &matmul, py::arg("kernels"), py::arg("weights"), py::arg("rows").noconvert());
}
