// Whether tensors are where and what they were, asked of torch itself before a step follows an address.
//
// The questions go through torch's stable C interface (aoti_torch_get_…), whose functions `memory.py` looks up in the
// copy that Python has loaded. A handle of that interface points to an at::Tensor, which is one pointer: so a row of
// TensorImpl addresses (`tensor._cdata`) is a row of tensors. No header of torch is needed.

#include <algorithm>
#include <cstdint>

#include "export.h"

namespace aimopt {

struct Torch {
    using Handle = const int64_t *;
    template <class T>
    using Get = int32_t (*)(Handle, T *);
    Get<void *> data_ptr;
    Get<int64_t> storage_offset, storage_size, dim;
    Get<int32_t> dtype, device_type, device_index;
    Get<int64_t *> sizes, strides;
};

// What is known of one tensor. In a record: these seven numbers, then as many sizes and strides as it has dimensions.
struct Tensor {
    int64_t address = 0, offset = 0, storage_bytes = 0;  // which gradients may change
    int64_t dtype = 0, device_type = 0, device_index = 0, dim = 0;
    int64_t *sizes = nullptr, *strides = nullptr;

    static constexpr int64_t kNumbers = 7;
    int64_t length() const { return kNumbers + 2 * dim; }

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

    void write(int64_t *record) const {
        const int64_t numbers[kNumbers] = {address, offset, storage_bytes, dtype, device_type, device_index, dim};
        std::copy(sizes, sizes + dim, std::copy(numbers, numbers + kNumbers, record));
        std::copy(strides, strides + dim, record + kNumbers + dim);
    }

    bool is_of_kind(const int64_t *record) const {
        return dtype == record[3] && device_type == record[4] && device_index == record[5] && dim == record[6] &&
               std::equal(sizes, sizes + dim, record + kNumbers) &&
               std::equal(strides, strides + dim, record + kNumbers + dim);
    }

    bool is_in_place(const int64_t *record) const {
        return address == record[0] && offset == record[1] && storage_bytes == record[2];
    }
};

}  // namespace aimopt

// The length of the record of `count` tensors, which is written to `record` where that has room for it; -1 where torch
// has no answer.
AIMOPT_API int64_t aimopt_memory_record(const aimopt::Torch *torch, const int64_t *tensors, int64_t count,
                                        int64_t *record, int64_t room) {
    int64_t length = 0;
    for (int64_t i = 0; i < count; i++) {
        aimopt::Tensor tensor;
        if (!tensor.read(*torch, tensors + i)) return -1;
        if (length + tensor.length() <= room) tensor.write(record + length);
        length += tensor.length();
    }
    return length;
}

// 0 if anything differs from the record, 1 if all is as it was, 2 if it is and a gradient lies in one of the `spans`
// places that the step writes to. Gradients come last; they may be elsewhere, in a storage that has room for them, and
// their addresses are written to `addresses`. Of each, `extents` has the bytes it spans and the size of an element.
AIMOPT_API int32_t aimopt_memory_holds(const aimopt::Torch *torch, const int64_t *tensors, int64_t written,
                                       int64_t grads, const int64_t *record, const int64_t *extents,
                                       const int64_t *starts, const int64_t *ends, int64_t spans, int64_t *addresses) {
    bool overlaps = false;
    for (int64_t i = 0; i < written + grads; i++) {
        aimopt::Tensor tensor;
        if (!tensor.read(*torch, tensors + i) || !tensor.is_of_kind(record)) return 0;
        if (i < written) {
            if (!tensor.is_in_place(record)) return 0;
        } else {
            const int64_t *extent = extents + 2 * (i - written);
            const bool empty = extent[0] == 0;
            const bool fits = tensor.address != 0 && tensor.offset * extent[1] + extent[0] <= tensor.storage_bytes;
            if (!empty && !fits) return 0;
            addresses[i - written] = tensor.address;
            const int64_t span = std::upper_bound(ends, ends + spans, tensor.address) - ends;
            overlaps |= !empty && span < spans && starts[span] < tensor.address + extent[0];
        }
        record += tensor.length();
    }
    return overlaps ? 2 : 1;
}
