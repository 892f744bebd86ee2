//! A CUDA runtime and cuDNN that compute nothing, for `tests/profile_conv.rs`, which builds this with rustc.
//!
//! It checks what it is called with: descriptors of the right kinds, sizes that belong together, buffers that are large
//! enough, everything released at the end; where something is wrong it ends the process. Time goes by as algorithms run:
//! 100 µs and 10 µs times their number, twice that in the first run. FFTs are not supported, and Winograd wants more workspace
//! than there is memory.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::Mutex;

type Pointer = *mut c_void;

const NOT_SUPPORTED: c_int = 9;
const OUT_OF_MEMORY: c_int = 2;
const MEMORY: usize = 1 << 30;

#[derive(Clone, Debug)]
enum Object {
    Handle,
    Buffer(usize),
    Event(f32),
    Tensor(Vec<c_int>),
    Filter(Vec<c_int>),
    Convolution {
        pads: Vec<c_int>,
        strides: Vec<c_int>,
        dilations: Vec<c_int>,
        groups: c_int,
    },
}

struct World {
    objects: HashMap<usize, Object>,
    made: usize,
    /// In milliseconds.
    clock: f32,
    ran: Vec<(c_int, usize)>,
}

static WORLD: Mutex<Option<World>> = Mutex::new(None);

fn with<T>(act: impl FnOnce(&mut World) -> T) -> T {
    let mut world = WORLD.lock().unwrap();
    act(world.get_or_insert_with(|| World {
        objects: HashMap::new(),
        made: 0,
        clock: 0.0,
        ran: Vec::new(),
    }))
}

fn fail(why: &str) -> ! {
    eprintln!("fake cuDNN: {why}");
    std::process::abort()
}

fn make(out: *mut Pointer, object: Object) -> c_int {
    with(|world| {
        world.made += 1;
        let number = world.made * 16;
        world.objects.insert(number, object);
        unsafe { *out = number as Pointer };
    });
    0
}

fn release(pointer: Pointer) -> c_int {
    with(|world| {
        if world.objects.remove(&(pointer as usize)).is_none() {
            fail("released twice");
        }
    });
    0
}

fn find(pointer: Pointer) -> Object {
    with(|world| world.objects.get(&(pointer as usize)).cloned())
        .unwrap_or_else(|| fail("no such object"))
}

fn list(from: *const c_int, count: c_int) -> Vec<c_int> {
    unsafe { std::slice::from_raw_parts(from, count as usize) }.to_vec()
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetDeviceCount(out: *mut c_int) -> c_int {
    let none = std::env::var_os("FAKE_CUDNN_WITHOUT_GPU").is_some();
    unsafe { *out = c_int::from(!none) };
    if none { 100 } else { 0 }
}

#[unsafe(no_mangle)]
extern "C" fn cudaMalloc(out: *mut Pointer, bytes: usize) -> c_int {
    if bytes > MEMORY {
        return OUT_OF_MEMORY;
    }
    make(out, Object::Buffer(bytes))
}

#[unsafe(no_mangle)]
extern "C" fn cudaFree(pointer: Pointer) -> c_int {
    release(pointer)
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemset(pointer: Pointer, _: c_int, bytes: usize) -> c_int {
    match find(pointer) {
        Object::Buffer(size) if size == bytes => 0,
        other => fail(&format!("memset of {bytes} in {other:?}")),
    }
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventCreate(out: *mut Pointer) -> c_int {
    make(out, Object::Event(f32::NAN))
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventDestroy(pointer: Pointer) -> c_int {
    release(pointer)
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventRecord(event: Pointer, _stream: Pointer) -> c_int {
    with(|world| {
        let now = world.clock;
        world.objects.insert(event as usize, Object::Event(now));
    });
    0
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventSynchronize(_: Pointer) -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventElapsedTime(out: *mut f32, begin: Pointer, end: Pointer) -> c_int {
    let (Object::Event(begin), Object::Event(end)) = (find(begin), find(end)) else {
        fail("no events")
    };
    unsafe { *out = end - begin };
    0
}

#[unsafe(no_mangle)]
extern "C" fn cudnnGetVersion() -> usize {
    90_103
}

#[unsafe(no_mangle)]
extern "C" fn cudnnCreate(out: *mut Pointer) -> c_int {
    make(out, Object::Handle)
}

#[unsafe(no_mangle)]
extern "C" fn cudnnDestroy(handle: Pointer) -> c_int {
    release(handle);
    with(|world| {
        if !world.objects.is_empty() {
            fail(&format!("never released: {:?}", world.objects));
        }
    });
    0
}

#[unsafe(no_mangle)]
extern "C" fn cudnnCreateTensorDescriptor(out: *mut Pointer) -> c_int {
    make(out, Object::Tensor(Vec::new()))
}

#[unsafe(no_mangle)]
extern "C" fn cudnnDestroyTensorDescriptor(pointer: Pointer) -> c_int {
    release(pointer)
}

fn set(pointer: Pointer, object: Object) -> c_int {
    let same = std::mem::discriminant(&find(pointer)) == std::mem::discriminant(&object);
    if !same {
        fail("a descriptor of another kind");
    }
    with(|world| world.objects.insert(pointer as usize, object));
    0
}

#[unsafe(no_mangle)]
extern "C" fn cudnnSetTensorNdDescriptor(
    pointer: Pointer,
    element: c_int,
    axes: c_int,
    dims: *const c_int,
    strides: *const c_int,
) -> c_int {
    let (dims, strides) = (list(dims, axes), list(strides, axes));
    let packed = |axis: usize| dims[axis + 1..].iter().product::<c_int>();
    if element != 0 || axes < 4 || (0..dims.len()).any(|axis| strides[axis] != packed(axis)) {
        fail(&format!("tensor of type {element}, {dims:?}, {strides:?}"));
    }
    set(pointer, Object::Tensor(dims))
}

#[unsafe(no_mangle)]
extern "C" fn cudnnCreateFilterDescriptor(out: *mut Pointer) -> c_int {
    make(out, Object::Filter(Vec::new()))
}

#[unsafe(no_mangle)]
extern "C" fn cudnnDestroyFilterDescriptor(pointer: Pointer) -> c_int {
    release(pointer)
}

#[unsafe(no_mangle)]
extern "C" fn cudnnSetFilterNdDescriptor(
    pointer: Pointer,
    element: c_int,
    format: c_int,
    axes: c_int,
    dims: *const c_int,
) -> c_int {
    if element != 0 || format != 0 || axes < 4 {
        fail("a filter in another form");
    }
    set(pointer, Object::Filter(list(dims, axes)))
}

#[unsafe(no_mangle)]
extern "C" fn cudnnCreateConvolutionDescriptor(out: *mut Pointer) -> c_int {
    let none = Vec::new;
    let (pads, strides, dilations) = (none(), none(), none());
    make(
        out,
        Object::Convolution {
            pads,
            strides,
            dilations,
            groups: 1,
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn cudnnDestroyConvolutionDescriptor(pointer: Pointer) -> c_int {
    release(pointer)
}

#[unsafe(no_mangle)]
extern "C" fn cudnnSetConvolutionNdDescriptor(
    pointer: Pointer,
    axes: c_int,
    pads: *const c_int,
    strides: *const c_int,
    dilations: *const c_int,
    mode: c_int,
    compute: c_int,
) -> c_int {
    if mode != 1 || compute != 0 {
        fail("a convolution that flips its windows, or is not in floats");
    }
    let (pads, strides, dilations) = (list(pads, axes), list(strides, axes), list(dilations, axes));
    set(
        pointer,
        Object::Convolution {
            pads,
            strides,
            dilations,
            groups: 1,
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn cudnnSetConvolutionGroupCount(pointer: Pointer, count: c_int) -> c_int {
    let Object::Convolution {
        pads,
        strides,
        dilations,
        ..
    } = find(pointer)
    else {
        fail("no convolution")
    };
    set(
        pointer,
        Object::Convolution {
            pads,
            strides,
            dilations,
            groups: count,
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn cudnnSetConvolutionMathType(pointer: Pointer, math: c_int) -> c_int {
    match (find(pointer), math) {
        (Object::Convolution { .. }, 0) => 0,
        _ => fail("another kind of mathematics"),
    }
}

/// Do these belong together?
fn check(data: Pointer, weights: Pointer, convolution: Pointer, windows: Pointer) {
    let all = (find(data), find(weights), find(convolution), find(windows));
    let (
        Object::Tensor(data),
        Object::Filter(weights),
        Object::Convolution {
            pads,
            strides,
            dilations,
            groups,
        },
        Object::Tensor(windows),
    ) = all
    else {
        fail(&format!(
            "not data, weights, convolution and windows: {all:?}"
        ))
    };
    let count = |axis: usize| {
        let reach = (weights[axis + 2] - 1) * dilations[axis] + 1;
        (data[axis + 2] + 2 * pads[axis] - reach) / strides[axis] + 1
    };
    let fits = data[0] == windows[0]
        && data[1] == weights[1] * groups
        && windows[1] == weights[0]
        && (0..pads.len()).all(|axis| windows[axis + 2] == count(axis));
    if !fits {
        fail(&format!(
            "{data:?}, {weights:?} and {windows:?}, {pads:?}, {strides:?}, {dilations:?}"
        ));
    }
}

fn workspace(algorithm: c_int, ffts: [c_int; 2], winograd: c_int, out: *mut usize) -> c_int {
    if ffts.contains(&algorithm) {
        return NOT_SUPPORTED;
    }
    let bytes = if algorithm == winograd {
        2 * MEMORY
    } else {
        1000 * algorithm as usize
    };
    unsafe { *out = bytes };
    0
}

#[unsafe(no_mangle)]
extern "C" fn cudnnGetConvolutionForwardWorkspaceSize(
    _: Pointer,
    x: Pointer,
    w: Pointer,
    convolution: Pointer,
    y: Pointer,
    algorithm: c_int,
    out: *mut usize,
) -> c_int {
    check(x, w, convolution, y);
    workspace(algorithm, [4, 5], 6, out)
}

#[unsafe(no_mangle)]
extern "C" fn cudnnGetConvolutionBackwardDataWorkspaceSize(
    _: Pointer,
    w: Pointer,
    dy: Pointer,
    convolution: Pointer,
    dx: Pointer,
    algorithm: c_int,
    out: *mut usize,
) -> c_int {
    check(dx, w, convolution, dy);
    workspace(algorithm, [2, 3], 4, out)
}

#[unsafe(no_mangle)]
extern "C" fn cudnnGetConvolutionBackwardFilterWorkspaceSize(
    _: Pointer,
    x: Pointer,
    dy: Pointer,
    convolution: Pointer,
    dw: Pointer,
    algorithm: c_int,
    out: *mut usize,
) -> c_int {
    check(x, dw, convolution, dy);
    workspace(algorithm, [2, 6], 5, out)
}

/// Each pair is a descriptor and its buffer.
fn run(
    pairs: [(Pointer, Pointer); 3],
    algorithm: c_int,
    space: Pointer,
    bytes: usize,
    factors: [*const c_void; 2],
) -> c_int {
    for (descriptor, buffer) in pairs {
        let (Object::Tensor(dims) | Object::Filter(dims)) = find(descriptor) else {
            fail("no operand")
        };
        let needed = 4 * dims.iter().map(|&n| n as usize).product::<usize>();
        if !matches!(find(buffer), Object::Buffer(size) if size == needed) {
            fail(&format!("a buffer for {dims:?} has another size"));
        }
    }
    let has_space = bytes == 0 || matches!(find(space), Object::Buffer(size) if size == bytes);
    let [one, zero] = factors.map(|factor| unsafe { *factor.cast::<f32>() });
    if bytes != 1000 * algorithm as usize || !has_space || one != 1.0 || zero != 0.0 {
        fail("not the workspace that was asked for, or other factors");
    }
    with(|world| {
        let key = (algorithm, pairs[0].0 as usize);
        let first = !world.ran.contains(&key);
        world.ran.push(key);
        let took = 0.1 + 0.01 * algorithm as f32;
        world.clock = if first { 2.0 * took } else { took };
        // Counted from the last run: sums of floats would not be exact.
        for object in world.objects.values_mut() {
            if let Object::Event(time) = object {
                *time = 0.0;
            }
        }
    });
    0
}

#[unsafe(no_mangle)]
extern "C" fn cudnnConvolutionForward(
    _: Pointer,
    one: *const c_void,
    x: Pointer,
    x_at: Pointer,
    w: Pointer,
    w_at: Pointer,
    convolution: Pointer,
    algorithm: c_int,
    space: Pointer,
    bytes: usize,
    zero: *const c_void,
    y: Pointer,
    y_at: Pointer,
) -> c_int {
    check(x, w, convolution, y);
    run(
        [(x, x_at), (w, w_at), (y, y_at)],
        algorithm,
        space,
        bytes,
        [one, zero],
    )
}

#[unsafe(no_mangle)]
extern "C" fn cudnnConvolutionBackwardData(
    _: Pointer,
    one: *const c_void,
    w: Pointer,
    w_at: Pointer,
    dy: Pointer,
    dy_at: Pointer,
    convolution: Pointer,
    algorithm: c_int,
    space: Pointer,
    bytes: usize,
    zero: *const c_void,
    dx: Pointer,
    dx_at: Pointer,
) -> c_int {
    check(dx, w, convolution, dy);
    run(
        [(w, w_at), (dy, dy_at), (dx, dx_at)],
        algorithm,
        space,
        bytes,
        [one, zero],
    )
}

#[unsafe(no_mangle)]
extern "C" fn cudnnConvolutionBackwardFilter(
    _: Pointer,
    one: *const c_void,
    x: Pointer,
    x_at: Pointer,
    dy: Pointer,
    dy_at: Pointer,
    convolution: Pointer,
    algorithm: c_int,
    space: Pointer,
    bytes: usize,
    zero: *const c_void,
    dw: Pointer,
    dw_at: Pointer,
) -> c_int {
    check(x, dw, convolution, dy);
    run(
        [(x, x_at), (dy, dy_at), (dw, dw_at)],
        algorithm,
        space,
        bytes,
        [one, zero],
    )
}
