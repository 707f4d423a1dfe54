// Whether tensors have changed or moved since they were recorded, before a step follows an address.
//
// torch is asked through its stable C interface (aoti_torch_get_…); `library.py` looks up the functions in the copy of
// torch that Python has loaded. A handle of that interface points to an at::Tensor, which is one pointer: so an array
// of TensorImpl addresses (`tensor._cdata`) is an array of tensors. No header of torch is needed.

#include <algorithm>
#include <cstdint>

#include "layout.h"

namespace aimopt {

// One tensor, as torch describes it.
struct Tensor {
    int64_t address = 0, offset = 0, storage_bytes = 0;  // these may change for a gradient
    int64_t dtype = 0, device_type = 0, device_index = 0, dim = 0;
    int64_t *sizes = nullptr, *strides = nullptr;

    int64_t length() const { return record::length + 2 * dim; }

    bool read(const Torch &torch, Torch::Handle handle) {
        void *data = nullptr;
        int32_t type = 0, device = 0, index = 0;
        if (torch.data_ptr(handle, &data) || torch.storage_offset(handle, &offset) ||
            torch.storage_size(handle, &storage_bytes) || torch.dim(handle, &dim) || torch.dtype(handle, &type) ||
            torch.device_type(handle, &device) || torch.device_index(handle, &index) || torch.sizes(handle, &sizes) ||
            torch.strides(handle, &strides))
            return false;
        address = reinterpret_cast<int64_t>(data);
        dtype = type, device_type = device, device_index = index;
        return true;
    }

    void write(int64_t *to) const {
        to[record::address] = address, to[record::offset] = offset, to[record::storage_bytes] = storage_bytes;
        to[record::dtype] = dtype, to[record::device_type] = device_type, to[record::device_index] = device_index;
        to[record::dim] = dim;
        std::copy(sizes, sizes + dim, to + record::length);
        std::copy(strides, strides + dim, to + record::length + dim);
    }

    bool has_same_kind(const int64_t *known) const {
        return dtype == known[record::dtype] && device_type == known[record::device_type] &&
               device_index == known[record::device_index] && dim == known[record::dim] &&
               std::equal(sizes, sizes + dim, known + record::length) &&
               std::equal(strides, strides + dim, known + record::length + dim);
    }

    bool has_same_memory(const int64_t *known) const {
        return address == known[record::address] && offset == known[record::offset] &&
               storage_bytes == known[record::storage_bytes];
    }
};

}  // namespace aimopt

// Write the record of `count` tensors to `record`, as far as it has `room`. The result is the length of the whole
// record, or -1 if torch reports an error.
int64_t aimopt_memory_record(const aimopt::Torch *torch, const int64_t *tensors, int64_t count, int64_t *record,
                             int64_t room) {
    int64_t length = 0;
    for (int64_t i = 0; i < count; i++) {
        aimopt::Tensor tensor;
        if (!tensor.read(*torch, tensors + i)) return -1;
        if (length + tensor.length() <= room) tensor.write(record + length);
        length += tensor.length();
    }
    return length;
}

// Sort the starts and the ends of spans of memory, separately. The result is 1 if no two spans overlap, else 0: if each
// end is at most the start after it, all spans that have started before a start have ended there.
int32_t aimopt_memory_sort(int64_t *starts, int64_t *ends, int64_t spans) {
    std::sort(starts, starts + spans);
    std::sort(ends, ends + spans);
    for (int64_t i = 0; i + 1 < spans; i++)
        if (ends[i] > starts[i + 1]) return 0;
    return 1;
}

// Compare tensors with their record: first the `written` ones, then the gradients. A gradient may have moved, if its
// storage is large enough; its address is written to `addresses`. Per gradient, `extents` has the bytes that it spans
// and the bytes per element. The result is `changed` if anything else differs, and `overlapping` if a gradient overlaps
// one of the `spans` of memory that the step writes; their starts and ends are sorted.
int32_t aimopt_memory_compare(const aimopt::Torch *torch, const int64_t *tensors, int64_t written, int64_t grads,
                              const int64_t *record, const int64_t *extents, const int64_t *starts, const int64_t *ends,
                              int64_t spans, int64_t *addresses) {
    constexpr int32_t kChanged = static_cast<int32_t>(aimopt::Comparison::changed);
    bool overlaps = false;
    for (int64_t i = 0; i < written + grads; i++) {
        aimopt::Tensor tensor;
        if (!tensor.read(*torch, tensors + i) || !tensor.has_same_kind(record)) return kChanged;
        if (i < written) {
            if (!tensor.has_same_memory(record)) return kChanged;
        } else {
            const int64_t *extent = extents + 2 * (i - written);
            const bool empty = extent[0] == 0;
            const bool fits = tensor.address != 0 && tensor.offset * extent[1] + extent[0] <= tensor.storage_bytes;
            if (!empty && !fits) return kChanged;
            addresses[i - written] = tensor.address;
            // It overlaps a span if more spans begin before its end than end before its start.
            const int64_t ended = std::upper_bound(ends, ends + spans, tensor.address) - ends;
            overlaps |= !empty && ended < spans && starts[ended] < tensor.address + extent[0];
        }
        record += tensor.length();
    }
    return static_cast<int32_t>(overlaps ? aimopt::Comparison::overlapping : aimopt::Comparison::unchanged);
}
