// A device "cuda" in host memory, for builds of torch without CUDA; compiled by build.py, used by gpu.py.
//
// Registers for DeviceType::CUDA what torch asks of a device: a guard, hooks (generators, pinned memory), an allocator
// that counts, the kernels that handle storages, and one fallback for all other operators: it computes with CPU tensors
// that see the same memory. What a real GPU refuses raises here, too; what it would make the host wait for is told to
// Python's listeners.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <atomic>
#include <bit>
#include <map>
#include <mutex>

namespace py = pybind11;

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

constexpr int kMostDevices = 16;
constexpr int64_t kStreamsPerDevice = 1000;

DeviceIndex device_count = 1;
thread_local DeviceIndex current_device = 0;  // CUDA's, too, starts at 0 in every thread
thread_local c10::StreamId current_streams[kMostDevices] = {0};

DeviceIndex index_of(Device device) { return device.has_index() ? device.index() : current_device; }

int64_t stream_of(DeviceIndex index) { return index * kStreamsPerDevice + current_streams[index]; }

// What has been issued, by stream; and which devices this process has opened a context on

std::mutex work_mutex;
std::map<int64_t, int64_t> issued;
bool has_context[kMostDevices] = {false};

int64_t issue(int64_t stream) {
  std::lock_guard<std::mutex> lock(work_mutex);
  has_context[stream / kStreamsPerDevice] = true;
  return ++issued[stream];
}

// Functions of Python. A returned text is the message of the error to raise.

PyObject* on_host_read = nullptr;  // (operator, stream)
PyObject* on_draw = nullptr;  // (operator): from the device's default generator
PyObject* on_access = nullptr;  // (operator, stream, pointers read, written, and freed since the last call), if wanted
PyObject* on_host_copy = nullptr;  // (target, source, to_host, non_blocking, stream): both as CPU tensors
std::atomic<bool> tells_accesses = false;

template <typename... Arguments>
void tell(PyObject* listener, Arguments&&... arguments) {
  std::string error;
  {
    py::gil_scoped_acquire gil;
    try {
      auto said = py::handle(listener)(std::forward<Arguments>(arguments)...);
      if (!said.is_none()) error = py::cast<std::string>(said);
    } catch (const py::error_already_set& raised) {
      error = raised.what();
    }
  }
  TORCH_CHECK(error.empty(), error);
}

struct Guard final : public c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device device) const override {
    return Device(DeviceType::CUDA, std::exchange(current_device, index_of(device)));
  }
  Device getDevice() const override { return Device(DeviceType::CUDA, current_device); }
  void setDevice(Device device) const override { current_device = index_of(device); }
  void uncheckedSetDevice(Device device) const noexcept override { current_device = index_of(device); }
  Stream getStream(Device device) const override {
    auto index = index_of(device);
    return Stream(Stream::UNSAFE, Device(DeviceType::CUDA, index), current_streams[index]);
  }
  Stream getDefaultStream(Device device) const override {
    return Stream(Stream::UNSAFE, Device(DeviceType::CUDA, index_of(device)), 0);
  }
  Stream getNewStream(Device device, int) const override { return getDefaultStream(device); }
  Stream exchangeStream(Stream stream) const override {
    auto before = getStream(stream.device());
    current_streams[stream.device_index()] = stream.id();
    return before;
  }
  DeviceIndex deviceCount() const noexcept override { return device_count; }
  // autograd's own events, between streams of one backward: all is computed in order here
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
};

// Memory, counted as the caching allocator does: blocks of 512 bytes out of segments of 2 MiB, without fragmentation

constexpr int64_t kBlock = 512;
constexpr int64_t kSegment = 2 << 20;

int64_t rounded(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

struct Memory {
  int64_t total = int64_t{80} << 30;
  int64_t others = int64_t{1} << 30;  // of other processes, and this one's context
  int64_t most = int64_t{80} << 30;  // that may be reserved: set_per_process_memory_fraction
  int64_t allocated = 0, reserved = 0, peak_allocated = 0, peak_reserved = 0;
  int64_t allocations = 0, refusals = 0;
};
std::mutex memory_mutex;
Memory memories[kMostDevices];
std::set<int64_t> freed;  // pointers, for on_access

void take(DeviceIndex index, int64_t bytes) {
  std::lock_guard<std::mutex> lock(memory_mutex);
  auto& memory = memories[index];
  has_context[index] = true;
  auto allocated = memory.allocated + rounded(bytes, kBlock);
  auto reserved = std::max(memory.reserved, rounded(allocated, kSegment));
  if (reserved > std::min(memory.most, memory.total - memory.others)) {
    ++memory.refusals;
    TORCH_CHECK_WITH(
        OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", bytes, " bytes. GPU ", int(index),
        " has a total capacity of ", memory.total, " bytes, of which ", memory.allocated, " bytes are allocated.");
  }
  ++memory.allocations;
  memory.allocated = allocated;
  memory.reserved = reserved;
  memory.peak_allocated = std::max(memory.peak_allocated, allocated);
  memory.peak_reserved = std::max(memory.peak_reserved, reserved);
}

void give_back(DeviceIndex index, int64_t bytes, const void* data) {
  std::lock_guard<std::mutex> lock(memory_mutex);
  memories[index].allocated -= rounded(bytes, kBlock);
  if (tells_accesses) freed.insert(reinterpret_cast<int64_t>(data));
}

void tell_access(const std::string& name, int64_t stream, const std::set<int64_t>& read, const std::set<int64_t>& written) {
  std::set<int64_t> gone;
  {
    std::lock_guard<std::mutex> lock(memory_mutex);
    gone.swap(freed);
  }
  tell(on_access, name, stream, read, written, gone);
}

// Holds what keeps memory alive, and counts it for a device from its construction to its end.
template <typename Held>
struct Counted {
  Held held;
  DeviceIndex index;
  int64_t bytes;
  Counted(Held held, DeviceIndex index, int64_t bytes) : held(std::move(held)), index(index), bytes(bytes) {
    take(index, bytes);
  }
  ~Counted() { give_back(index, bytes, pointer_of(held)); }
  static const void* pointer_of(const c10::DataPtr& data) { return data.get(); }
  static const void* pointer_of(const c10::Storage& storage) { return storage.data(); }
  static void release(void* self) { delete static_cast<Counted*>(self); }
};

struct DeviceAllocator final : public c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    Device device(DeviceType::CUDA, current_device);
    if (!bytes) return {nullptr, device};
    auto* counted = new Counted<c10::DataPtr>(c10::DataPtr(), current_device, bytes);
    counted->held = c10::GetCPUAllocator()->allocate(bytes);
    return {counted->held.get(), counted, &Counted<c10::DataPtr>::release, device};
  }
  void copy_data(void* target, const void* source, size_t count) const override { std::memcpy(target, source, count); }
};
DeviceAllocator device_allocator;

struct Pinned {
  size_t bytes;
  size_t taken;  // torch's allocator rounds each block up to a power of two
};
std::mutex pinned_mutex;
std::map<const char*, Pinned> pinned_blocks;

void pin(const void* data, size_t bytes, size_t taken) {
  std::lock_guard<std::mutex> lock(pinned_mutex);
  pinned_blocks[static_cast<const char*>(data)] = {bytes, taken};
}

void unpin(const void* data) {
  std::lock_guard<std::mutex> lock(pinned_mutex);
  pinned_blocks.erase(static_cast<const char*>(data));
}

struct PinnedAllocator final : public c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    bytes = std::max<size_t>(bytes, 1);
    void* data = c10::GetCPUAllocator()->raw_allocate(bytes);
    pin(data, bytes, std::bit_ceil(bytes));
    return {data, data, &release, Device(DeviceType::CPU)};
  }
  static void release(void* data) {
    unpin(data);
    c10::GetCPUAllocator()->raw_deallocate(data);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, size_t count) const override { std::memcpy(target, source, count); }
};
PinnedAllocator pinned_allocator;

bool is_pinned(const void* data) {
  std::lock_guard<std::mutex> lock(pinned_mutex);
  auto found = pinned_blocks.upper_bound(static_cast<const char*>(data));
  if (found == pinned_blocks.begin()) return false;
  --found;
  return static_cast<const char*>(data) < found->first + found->second.bytes;
}

int64_t pinned_bytes() {
  std::lock_guard<std::mutex> lock(pinned_mutex);
  int64_t sum = 0;
  for (const auto& [_, block] : pinned_blocks) sum += block.taken;
  return sum;
}

// Random numbers: (seed, offset) as CUDA's Philox has them; each draw advances the offset

struct DeviceGenerator final : public c10::GeneratorImpl {
  explicit DeviceGenerator(DeviceIndex index)
      : c10::GeneratorImpl(Device(DeviceType::CUDA, index), c10::DispatchKeySet(c10::DispatchKey::CUDA)) {}
  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
  void set_current_seed(uint64_t seed) override { seed_ = seed; offset_ = 0; }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom(true));
    return seed_;
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::empty({16}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
    auto* data = state.mutable_data_ptr<uint8_t>();
    std::memcpy(data, &seed_, 8);
    std::memcpy(data + 8, &offset_, 8);
    return state.getIntrusivePtr();
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.device().is_cpu() && state.numel() == 16, "RNG state must be a torch.ByteTensor of 16 bytes");
    auto* data = static_cast<const uint8_t*>(state.data());
    std::memcpy(&seed_, data, 8);
    std::memcpy(&offset_, data + 8, 8);
  }
  DeviceGenerator* clone_impl() const override {
    auto* copy = new DeviceGenerator(device().index());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }
};

std::vector<at::Generator>& default_generators() {
  static std::vector<at::Generator> all = [] {
    std::vector<at::Generator> made;
    for (DeviceIndex index = 0; index < kMostDevices; ++index) made.push_back(at::make_generator<DeviceGenerator>(index));
    return made;
  }();
  return all;
}

// A CPU generator of the random numbers that come next, which count as drawn.
at::Generator draw_from(const at::Generator& generator) {
  TORCH_CHECK(
      generator.device().type() == DeviceType::CUDA, "Expected a 'cuda' device type for generator but found '",
      generator.device().type(), "'");
  auto* ours = static_cast<DeviceGenerator*>(generator.unsafeGetGeneratorImpl());
  auto drawn = at::detail::createCPUGenerator(ours->seed_ * 0x9E3779B97F4A7C15ULL + ours->offset_);
  ours->offset_ += 4;
  return drawn;
}

struct Hooks final : public at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex index) const override { return has_context[index]; }
  DeviceIndex current_device() const override { return ::current_device; }
  DeviceIndex deviceCount() const override { return device_count; }
  int getNumGPUs() const override { return device_count; }
  void setCurrentDevice(DeviceIndex index) const override { ::current_device = index; }
  DeviceIndex getCurrentDevice() const override { return ::current_device; }
  DeviceIndex exchangeDevice(DeviceIndex index) const override { return std::exchange(::current_device, index); }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override { return std::exchange(::current_device, index); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  c10::Allocator* getCUDADeviceAllocator() const override { return &device_allocator; }
  Device getDeviceFromPtr(void*) const override { return Device(DeviceType::CUDA, ::current_device); }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override {
    return default_generators()[index < 0 ? ::current_device : index];
  }
  at::Generator getNewGenerator(DeviceIndex index) const override {
    return at::make_generator<DeviceGenerator>(index < 0 ? ::current_device : index);
  }
};

// The same memory, as a tensor of the other device

at::Tensor like(const at::Tensor& tensor, c10::Storage storage, c10::DispatchKey key) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), tensor.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) impl->_set_conj(true);
  if (tensor.is_neg()) impl->_set_neg(true);
  return made;
}

c10::Storage storage_of(void* data, int64_t bytes, void* context, c10::DeleterFnPtr release, Device device) {
  auto* allocator = device.is_cpu() ? c10::GetCPUAllocator() : &device_allocator;
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, c10::DataPtr(data, context, release, device), allocator, true);
}

at::Tensor as_cpu(const at::Tensor& tensor) {
  const auto& storage = tensor.storage();
  auto release = [](void* held) { delete static_cast<c10::Storage*>(held); };
  auto twin = storage_of(
      storage.mutable_data(), storage.nbytes(), new c10::Storage(storage), release, Device(DeviceType::CPU));
  return like(tensor, std::move(twin), c10::DispatchKey::CPU);
}

at::Tensor as_cuda(const at::Tensor& tensor, DeviceIndex index) {
  const auto& storage = tensor.storage();
  auto* counted = new Counted<c10::Storage>(storage, index, storage.nbytes());
  auto twin = storage_of(
      storage.mutable_data(), storage.nbytes(), counted, &Counted<c10::Storage>::release,
      Device(DeviceType::CUDA, index));
  return like(tensor, std::move(twin), c10::DispatchKey::CUDA);
}

// Operators

// They copy values to the host to know the shape of their result, or to answer.
const std::set<std::string> kHostReads = {
    "aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::_unique2",
    "aten::unique_dim", "aten::unique_consecutive", "aten::bincount", "aten::histc", "aten::repeat_interleave"};
// CUDA's kernels copy their indices to the device; a mask has a length that the host must know.
const std::set<std::string> kIndexed = {
    "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index"};

template <typename Change>  // Tensor to Tensor
void change_tensors(c10::IValue& value, Change change) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) value = change(value.toTensor());
  } else if (value.isTensorList()) {
    auto list = value.toTensorList();
    c10::List<at::Tensor> changed;
    changed.reserve(list.size());
    for (const at::Tensor& tensor : list) changed.push_back(tensor.defined() ? change(tensor) : tensor);
    value = changed;
  } else if (value.isOptionalTensorList()) {
    auto list = value.toOptionalTensorList();
    c10::List<std::optional<at::Tensor>> changed;
    changed.reserve(list.size());
    for (const std::optional<at::Tensor>& tensor : list)
      changed.push_back(tensor && tensor->defined() ? std::optional<at::Tensor>(change(*tensor)) : tensor);
    value = changed;
  } else if (value.isList() && value.toListRef().size() && value.toListRef()[0].isTensorList()) {  // c10d's
    auto lists = value.toList();
    for (size_t place = 0; place < lists.size(); ++place) {
      c10::IValue inner = lists.get(place);
      change_tensors(inner, change);
      lists.set(place, inner);
    }
  }
}

template <typename Visit>
void visit_tensors(const c10::IValue& value, Visit visit) {
  auto copy = value;
  change_tensors(copy, [&](const at::Tensor& tensor) {
    visit(tensor);
    return tensor;
  });
}

class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack* stack)
      : op_(op), stack_(stack), name_(op.schema().name()), first_(stack->size() - op.schema().arguments().size()) {}

  void compute() {
    find_device();
    stream_ = stream_of(index_);
    issue(stream_);
    tell_reads();
    tell_accesses();
    draw();
    for (size_t place = first_; place < stack_->size(); ++place) to_cpu((*stack_)[place]);
    {
      at::AutoDispatchBelowADInplaceOrView guard;
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack_);
    }
    for (auto& [tensor, twin] : twins_)
      if (tensor.storage().data() != twin.storage().data() || tensor.sizes() != twin.sizes()) replace(tensor, twin);
    for (size_t place = first_; place < stack_->size(); ++place)
      change_tensors((*stack_)[place], [this](const at::Tensor& tensor) { return to_cuda(tensor); });
  }

 private:
  const c10::OperatorHandle& op_;
  torch::jit::Stack* stack_;
  const std::string& name_;
  size_t first_;
  DeviceIndex index_ = -1;
  int64_t stream_ = 0;
  bool cpu_indices_ = false;
  bool mask_ = false;
  std::vector<std::pair<at::Tensor, at::Tensor>> twins_;

  const c10::Argument& argument(size_t place) const { return op_.schema().arguments()[place - first_]; }

  // Raises if there are several. Numbers, which are CPU tensors without a side, may be mixed in.
  void find_device() {
    bool on_cpu = false;
    for (size_t place = first_; place < stack_->size(); ++place) {
      const auto& value = (*stack_)[place];
      if (value.isDevice() && value.toDevice().is_cuda() && index_ < 0) index_ = index_of(value.toDevice());
      visit_tensors(value, [&](const at::Tensor& tensor) {
        if (tensor.is_cuda()) {
          TORCH_CHECK(
              index_ < 0 || index_ == tensor.device().index(),
              "Expected all tensors to be on the same device, but found at least two devices, cuda:", int(index_),
              " and ", tensor.device(), "! (", name_, ")");
          index_ = tensor.device().index();
          mask_ |= place > first_ && (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte);
        } else if (tensor.dim() > 0) {
          on_cpu = true;
          cpu_indices_ |= value.isOptionalTensorList();
        }
      });
    }
    if (index_ < 0) index_ = current_device;
    TORCH_CHECK(
        !on_cpu || (kIndexed.count(name_) && cpu_indices_),
        "Expected all tensors to be on the same device, but found at least two devices, cuda:", int(index_),
        " and cpu! (", name_, ")");
  }

  void tell_reads() const {
    bool by_tensor = name_ != "aten::repeat_interleave" || op_.schema().overload_name() == "Tensor";
    if (kHostReads.count(name_) && by_tensor) tell(on_host_read, name_.substr(6), stream_);
    if (!kIndexed.count(name_)) return;
    if (cpu_indices_) tell(on_host_read, "index on the CPU", stream_);
    if (mask_) tell(on_host_read, "mask as index", stream_);
  }

  void tell_accesses() const {
    if (!tells_accesses) return;
    std::set<int64_t> read, written;
    for (size_t place = first_; place < stack_->size(); ++place) {
      const auto* alias = argument(place).alias_info();
      auto& pointers = alias && alias->isWrite() ? written : read;
      visit_tensors((*stack_)[place], [&](const at::Tensor& tensor) {
        if (tensor.is_cuda()) pointers.insert(reinterpret_cast<int64_t>(tensor.storage().data()));
      });
    }
    tell_access(name_, stream_, read, written);
  }

  void draw() const {
    for (size_t place = first_; place < stack_->size(); ++place) {
      if (argument(place).name() != "generator") continue;
      auto& value = (*stack_)[place];
      if (value.isNone()) tell(on_draw, name_.substr(6));
      value = draw_from(value.isNone() ? default_generators()[index_] : value.toGenerator());
    }
  }

  void to_cpu(c10::IValue& value) {
    if (value.isDevice() && value.toDevice().is_cuda()) value = Device(DeviceType::CPU);
    change_tensors(value, [this](const at::Tensor& tensor) {
      if (!tensor.is_cuda()) return tensor;
      for (auto& [known, twin] : twins_)
        if (known.is_same(tensor)) return twin;
      twins_.emplace_back(tensor, as_cpu(tensor));
      return twins_.back().second;
    });
  }

  at::Tensor to_cuda(const at::Tensor& tensor) const {
    if (!tensor.device().is_cpu()) return tensor;
    for (auto& [original, twin] : twins_) {
      if (twin.is_same(tensor)) return original;
      if (twin.storage().is_alias_of(tensor.storage())) return like(tensor, original.storage(), c10::DispatchKey::CUDA);
    }
    return as_cuda(tensor, index_);
  }

  // An `out` that was given another size.
  void replace(const at::Tensor& tensor, const at::Tensor& twin) const {
    auto* impl = tensor.unsafeGetTensorImpl();
    if (tensor.storage().data() != twin.storage().data())
      impl->set_storage_keep_dtype(as_cuda(twin, index_).storage());
    impl->set_sizes_and_strides(twin.sizes(), twin.strides(), twin.storage_offset());
  }
};

void compute(const c10::OperatorHandle& op, torch::jit::Stack* stack) { Call(op, stack).compute(); }

// Collectives of gloo, which work on the CPU tensors of the same memory; their results are those of the device.

struct DeviceWork final : public c10d::Work {
  c10::intrusive_ptr<c10d::Work> work;
  std::vector<at::Tensor> tensors;
  DeviceWork(c10::intrusive_ptr<c10d::Work> work, std::vector<at::Tensor> tensors)
      : work(std::move(work)), tensors(std::move(tensors)) {}
  bool isCompleted() override { return work->isCompleted(); }
  bool isSuccess() const override { return work->isSuccess(); }
  std::exception_ptr exception() const override { return work->exception(); }
  bool wait(std::chrono::milliseconds timeout) override { return work->wait(timeout); }
  void synchronize() override { work->synchronize(); }
  std::vector<at::Tensor> result() override { return tensors; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto value = c10::IValue(tensors);
    return work->getFuture()->then([value](c10::ivalue::Future&) { return value; }, c10::ListType::ofTensors());
  }
};

// DDP's, of its own statistics, of which there are none here.
struct DeviceTimer final : public c10d::Timer {
  explicit DeviceTimer(Device) {}
  std::optional<int64_t> measureDifference(Event, Event) override { return std::nullopt; }
};

void communicate(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  std::vector<at::Tensor> tensors;  // of the first argument, into which the results come
  visit_tensors((*stack)[stack->size() - op.schema().arguments().size()], [&](const at::Tensor& tensor) {
    tensors.push_back(tensor);
  });
  Call(op, stack).compute();
  auto& last = stack->back();
  c10::intrusive_ptr<c10d::Work> work = c10::make_intrusive<DeviceWork>(last.toCustomClass<c10d::Work>(), tensors);
  last = work;
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  at::AutoDispatchBelowADInplaceOrView guard;
  auto stream = stream_of(self.is_cuda() ? self.device().index() : source.device().index());
  issue(stream);
  if (tells_accesses) {
    std::set<int64_t> read, written;
    if (source.is_cuda()) read.insert(reinterpret_cast<int64_t>(source.storage().data()));
    if (self.is_cuda()) written.insert(reinterpret_cast<int64_t>(self.storage().data()));
    tell_access("aten::copy_", stream, read, written);
  }
  auto target = self.is_cuda() ? as_cpu(self) : self;
  auto origin = source.is_cuda() ? as_cpu(source) : source;
  bool within = self.is_cuda() && source.is_cuda();
  if (within || self.numel() == 0) target.copy_(origin);
  else tell(on_host_copy, target, origin, !self.is_cuda(), non_blocking, stream);
  return self;
}

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true) || p == 0) return {input.clone(), at::ones_like(input, at::kBool)};
  auto kept = at::empty_like(input, input.options().dtype(at::kBool)).bernoulli_(1 - p);
  return {input.mul(kept).mul(1 / (1 - p)), kept};
}

// Those of CUDA read numbers of 16 bits and write fp32, which those of the CPU refuse.
at::Tensor softmax(const at::Tensor& input, int64_t dim, bool half_to_float) {
  auto read = half_to_float ? input.to(at::kFloat) : input;
  auto output = at::empty_like(read);
  return at::_softmax_out(output, read, dim, false);
}

at::Tensor softmax_backward(const at::Tensor& gradient, const at::Tensor& output, int64_t dim, at::ScalarType dtype) {
  auto found = at::empty_like(gradient);
  at::_softmax_backward_data_out(found, gradient, output, dim, gradient.scalar_type());
  return found.to(dtype);
}

void record_stream(at::Tensor&, c10::Stream) {}  // memory is not used again here before it is free

// Kernels of storages

at::Tensor empty(
    c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<Device> device, std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  const c10::DeviceGuard guard(device.value_or(Device(DeviceType::CUDA)));
  return at::detail::empty_generic(
      C10_AS_INTARRAYREF_SLOW(size), &device_allocator, c10::DispatchKeySet(c10::DispatchKey::CUDA),
      at::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>, std::optional<Device> device, std::optional<bool> pin) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  const c10::DeviceGuard guard(device.value_or(Device(DeviceType::CUDA)));
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &device_allocator,
      c10::DispatchKeySet(c10::DispatchKey::CUDA), at::dtype_or_default(dtype));
}

at::Tensor as_strided(
    const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
      offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

void resize_storage(const c10::Storage& storage, Device device, int64_t bytes) {
  const c10::DeviceGuard guard(device);
  auto data = device_allocator.allocate(bytes);
  if (auto kept = std::min<int64_t>(bytes, storage.nbytes())) std::memcpy(data.get(), storage.data(), kept);
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
  storage.unsafeGetStorageImpl()->set_nbytes(bytes);
}

const at::Tensor& resize_(
    const at::Tensor& self, c10::SymIntArrayRef symbolic, std::optional<at::MemoryFormat> format) {
  auto size = C10_AS_INTARRAYREF_SLOW(symbolic);
  auto* impl = self.unsafeGetTensorImpl();
  int64_t count = 1;
  for (auto side : size) count *= side;
  int64_t needed = (impl->storage_offset() + count) * self.dtype().itemsize();
  if (count && needed > static_cast<int64_t>(self.storage().nbytes()))
    resize_storage(self.storage(), self.device(), needed);
  impl->set_sizes_contiguous(size);
  if (format && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  return self;
}

at::Tensor& set_storage(
    at::Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset.expect_int());
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  auto strides = C10_AS_INTARRAYREF_SLOW(stride);
  if (strides.empty() && !sizes.empty()) impl->set_sizes_contiguous(sizes);
  else impl->set_sizes_and_strides(sizes, strides);
  return self;
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(source.storage());
  impl->set_storage_offset(source.storage_offset());
  impl->set_sizes_and_strides(source.sizes(), source.strides());
  return self;
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("resize_", &resize_);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("copy_", &copy_);
  m.impl("native_dropout", &native_dropout);
  m.impl("_softmax", &softmax);
  m.impl("_softmax_backward_data", &softmax_backward);
  m.impl("record_stream", &record_stream);
  // that of three dimensions looks for a kernel of CUDA below the dispatcher
  m.impl("convolution_backward", torch::CppFunction::makeFromBoxedFunction<&compute>());
}

TORCH_LIBRARY_IMPL(c10d, CUDA, m) {
  for (const char* name :
       {"send", "recv_", "recv_any_source_", "reduce_", "broadcast_", "allreduce_", "allreduce_coalesced_",
        "allgather_", "_allgather_base_", "allgather_coalesced_", "allgather_into_tensor_coalesced_",
        "reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_", "gather_", "scatter_",
        "alltoall_", "alltoall_base_", "barrier"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&communicate>());
}

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&compute>()); }

}  // namespace

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, DeviceTimer)
}  // namespace c10d

// torch creates its hooks, without CUDA, before anything can register others. They have no state: the object gets the
// functions of ours.
void replace_hooks() {
  auto* present = const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks());
  static auto* ours = new Hooks(at::CUDAHooksArgs{});
  *reinterpret_cast<void**>(present) = *reinterpret_cast<void**>(static_cast<at::CUDAHooksInterface*>(ours));
}

PYBIND11_MODULE(_fake_cuda, m) {
  replace_hooks();
  c10::SetAllocator(c10::DeviceType::CUDA, &device_allocator, 255);
  m.def("listen", [](py::object host_read, py::object draw, py::object access, py::object host_copy) {
    on_host_read = host_read.release().ptr();
    on_draw = draw.release().ptr();
    on_access = access.release().ptr();
    on_host_copy = host_copy.release().ptr();
  });
  m.def("tell_accesses", [](bool wanted) { tells_accesses = wanted; });
  m.def("as_cpu", &as_cpu);
  m.def("is_pinned", [](const at::Tensor& tensor) { return is_pinned(tensor.storage().data()); });
  m.def("resize_storage", [](const at::Storage& storage, int64_t bytes) {
    resize_storage(storage, storage.device(), bytes);
  });
  m.def("pinned_bytes", &pinned_bytes);
  m.def("pin", [](int64_t address, int64_t bytes) { pin(reinterpret_cast<void*>(address), bytes, bytes); });
  m.def("unpin", [](int64_t address) { unpin(reinterpret_cast<void*>(address)); });
  m.def("set_device_count", [](int64_t count) { device_count = static_cast<DeviceIndex>(count); });
  m.def("current_device", [] { return static_cast<int64_t>(current_device); });
  m.def("exchange_device", [](int64_t index) {
    return static_cast<int64_t>(index < 0 ? current_device : std::exchange(current_device, DeviceIndex(index)));
  });
  m.def("current_stream", [](int64_t index) { return static_cast<int64_t>(current_streams[index]); });
  m.def("set_stream", [](int64_t index, int64_t id) { current_streams[index] = id; });
  m.def("issue", &issue);
  m.def("issued", [] {
    std::lock_guard<std::mutex> lock(work_mutex);
    return issued;
  });
  m.def("contexts", [] {
    std::set<int64_t> found;
    for (int index = 0; index < kMostDevices; ++index)
      if (has_context[index]) found.insert(index);
    return found;
  });
  m.def("default_generator", [](int64_t index) { return default_generators()[index]; });
  py::class_<Memory>(m, "Memory")
      .def_readwrite("total", &Memory::total)
      .def_readwrite("others", &Memory::others)
      .def_readwrite("most", &Memory::most)
      .def_readwrite("allocated", &Memory::allocated)
      .def_readwrite("reserved", &Memory::reserved)
      .def_readwrite("peak_allocated", &Memory::peak_allocated)
      .def_readwrite("peak_reserved", &Memory::peak_reserved)
      .def_readwrite("allocations", &Memory::allocations)
      .def_readwrite("refusals", &Memory::refusals);
  m.def("memory", [](int64_t index) { return &memories[index]; }, py::return_value_policy::reference);
  m.def("empty_cache", [] {
    std::lock_guard<std::mutex> lock(memory_mutex);
    for (auto& memory : memories) memory.reserved = rounded(memory.allocated, kSegment);
  });
}
