//! cuDNN and the CUDA runtime, loaded when they are asked for: this program builds and runs without them.
//!
//! All calls into them are in this file, which is one of the few that may have `unsafe` (ARCHITECTURE.md lists them). Signatures and numbers are from NVIDIA's
//! reference of cuDNN 8 and of the CUDA runtime; cuDNN 9 still has these functions. What keeps the calls sound:
//!
//! - a function is called with the types under which it is declared here, as long as its library is loaded ([`Gpu`]
//!   keeps both);
//! - handles, descriptors, events and buffers are released once, by [`Drop`], before the libraries;
//! - buffers are as large as the descriptors say, sizes being multiplied with checks, and nothing is read from them here;
//! - a status other than 0 is an error, and no result is used then.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

use ckpt_passes::graph::ElementType;
use ckpt_passes::operators::algorithms::{Direction, Geometry};
use libloading::Library;
use thiserror::Error;

/// Why nothing can be measured.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum GpuError {
    #[error("no {library} can be loaded; it is needed, and a GPU ({})", attempts.join("; "))]
    NoLibrary {
        library: &'static str,
        attempts: Vec<String>,
    },
    #[error("{}: it lacks a function: {error}", path.display())]
    NoFunction {
        path: PathBuf,
        error: libloading::Error,
    },
    #[error("there is no GPU: cudaGetDeviceCount says {status}, and {count} devices")]
    NoDevice { status: c_int, count: c_int },
    #[error("{function} failed with status {status}")]
    Failed {
        function: &'static str,
        status: c_int,
    },
    #[error("{0} is too large for cuDNN, or has a type that it does not convolve")]
    Unsupported(String),
}

type Pointer = *mut c_void;
type Ints = *const c_int;

/// A library's functions, all of which return a status.
macro_rules! functions {
    ($name:ident { $($function:ident($($argument:ty),*);)* }) => {
        #[allow(non_snake_case)]
        struct $name {
            $($function: unsafe extern "C" fn($($argument),*) -> c_int,)*
            /// Functions are valid as long as it is loaded.
            _library: Library,
        }

        impl $name {
            /// # Safety
            ///
            /// The library's functions have these types.
            unsafe fn of(library: Library) -> Result<$name, libloading::Error> {
                Ok($name {
                    $($function: {
                        let name = concat!(stringify!($function), "\0");
                        // SAFETY: by the caller's promise.
                        *unsafe { library.get(name.as_bytes()) }?
                    },)*
                    _library: library,
                })
            }
        }
    };
}

functions!(Cuda {
    cudaGetDeviceCount(*mut c_int);
    cudaMalloc(*mut Pointer, usize);
    cudaFree(Pointer);
    cudaMemset(Pointer, c_int, usize);
    cudaEventCreate(*mut Pointer);
    cudaEventDestroy(Pointer);
    cudaEventRecord(Pointer, Pointer);
    cudaEventSynchronize(Pointer);
    cudaEventElapsedTime(*mut f32, Pointer, Pointer);
});

functions!(Dnn {
    cudnnCreate(*mut Pointer);
    cudnnDestroy(Pointer);
    cudnnCreateTensorDescriptor(*mut Pointer);
    cudnnDestroyTensorDescriptor(Pointer);
    cudnnSetTensorNdDescriptor(Pointer, c_int, c_int, Ints, Ints);
    cudnnCreateFilterDescriptor(*mut Pointer);
    cudnnDestroyFilterDescriptor(Pointer);
    cudnnSetFilterNdDescriptor(Pointer, c_int, c_int, c_int, Ints);
    cudnnCreateConvolutionDescriptor(*mut Pointer);
    cudnnDestroyConvolutionDescriptor(Pointer);
    cudnnSetConvolutionNdDescriptor(Pointer, c_int, Ints, Ints, Ints, c_int, c_int);
    cudnnSetConvolutionGroupCount(Pointer, c_int);
    cudnnSetConvolutionMathType(Pointer, c_int);
    cudnnGetConvolutionForwardWorkspaceSize(Pointer, Pointer, Pointer, Pointer, Pointer, c_int, *mut usize);
    cudnnGetConvolutionBackwardDataWorkspaceSize(Pointer, Pointer, Pointer, Pointer, Pointer, c_int, *mut usize);
    cudnnGetConvolutionBackwardFilterWorkspaceSize(Pointer, Pointer, Pointer, Pointer, Pointer, c_int, *mut usize);
    cudnnConvolutionForward(Pointer, *const c_void, Pointer, Pointer, Pointer, Pointer, Pointer, c_int, Pointer, usize, *const c_void, Pointer, Pointer);
    cudnnConvolutionBackwardData(Pointer, *const c_void, Pointer, Pointer, Pointer, Pointer, Pointer, c_int, Pointer, usize, *const c_void, Pointer, Pointer);
    cudnnConvolutionBackwardFilter(Pointer, *const c_void, Pointer, Pointer, Pointer, Pointer, Pointer, c_int, Pointer, usize, *const c_void, Pointer, Pointer);
});

const CUDART: [&str; 4] = [
    "libcudart.so.12",
    "libcudart.so.13",
    "libcudart.so.11.0",
    "libcudart.so",
];
const CUDNN: [&str; 3] = ["libcudnn.so.9", "libcudnn.so.8", "libcudnn.so"];

/// CUDNN_CROSS_CORRELATION: what machine learning calls a convolution.
const CROSS_CORRELATION: c_int = 1;
/// CUDNN_TENSOR_NCHW.
const NCHW: c_int = 0;

/// cuDNN's numbers for the algorithms of the table. Its direct algorithm, and Winograd for weights, are not implemented.
fn numbers(direction: Direction) -> &'static [(&'static str, c_int)] {
    match direction {
        Direction::Forward => &[
            ("implicit-gemm", 0),
            ("precomputed-gemm", 1),
            ("gemm", 2),
            ("fft", 4),
            ("tiled-fft", 5),
            ("winograd", 6),
            ("winograd-non-fused", 7),
        ],
        Direction::BackwardData => &[
            ("implicit-gemm", 0),
            ("deterministic-gemm", 1),
            ("fft", 2),
            ("tiled-fft", 3),
            ("winograd", 4),
            ("winograd-non-fused", 5),
        ],
        Direction::BackwardFilter => &[
            ("implicit-gemm", 0),
            ("deterministic-gemm", 1),
            ("fft", 2),
            ("split-gemm", 3),
            ("winograd-non-fused", 5),
            ("tiled-fft", 6),
        ],
    }
}

/// One GPU, the first, with cuDNN.
pub struct Gpu {
    handle: Pointer,
    dnn: Dnn,
    cuda: Cuda,
    /// Of cuDNN, as it numbers itself: 90100 is 9.1.0, 8907 is 8.9.7.
    pub version: usize,
}

/// What one algorithm took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// As the table names it.
    pub name: &'static str,
    /// The least of [`RUNS`] runs, in milliseconds.
    pub milliseconds: f32,
    /// In bytes.
    pub workspace: usize,
}

/// So often each algorithm runs, after once that does not count.
pub const RUNS: usize = 5;

impl Gpu {
    /// Loads both libraries, from these files or from where the system finds them.
    pub fn open(cudart: Option<&Path>, cudnn: Option<&Path>) -> Result<Gpu, GpuError> {
        let (path, library) = load("CUDA runtime (libcudart)", cudart, &CUDART)?;
        // SAFETY: these are the CUDA runtime's functions.
        let cuda = unsafe { Cuda::of(library) };
        let cuda = cuda.map_err(|error| GpuError::NoFunction { path, error })?;
        let mut count = 0;
        // SAFETY: it writes one int.
        let status = unsafe { (cuda.cudaGetDeviceCount)(&mut count) };
        if status != 0 || count == 0 {
            return Err(GpuError::NoDevice { status, count });
        }
        let (path, library) = load("cuDNN (libcudnn)", cudnn, &CUDNN)?;
        // SAFETY: it takes nothing and returns size_t.
        let version = unsafe {
            let function = library.get::<unsafe extern "C" fn() -> usize>(b"cudnnGetVersion\0");
            function.map(|function| function())
        };
        // SAFETY: these are cuDNN's functions.
        let dnn = version.and_then(|version| Ok((version, unsafe { Dnn::of(library) }?)));
        let (version, dnn) = dnn.map_err(|error| GpuError::NoFunction { path, error })?;
        let mut handle = null_mut();
        // SAFETY: it writes one pointer.
        check("cudnnCreate", unsafe { (dnn.cudnnCreate)(&mut handle) })?;
        Ok(Gpu {
            handle,
            dnn,
            cuda,
            version,
        })
    }

    /// What each algorithm takes that computes this product; those that cuDNN refuses, or for which there is no memory,
    /// are left out.
    pub fn measure(
        &self,
        geometry: &Geometry,
        direction: Direction,
    ) -> Result<Vec<Measured>, GpuError> {
        let prepared = Prepared::of(self, geometry)?;
        let all = numbers(direction).iter();
        Ok(all
            .filter_map(|&(name, number)| {
                let workspace = prepared.workspace(direction, number)?;
                let milliseconds = prepared.time(direction, number, workspace)?;
                Some(Measured {
                    name,
                    milliseconds,
                    workspace,
                })
            })
            .collect())
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: it was made by cudnnCreate, and everything that used it borrows from `self`.
        unsafe { (self.dnn.cudnnDestroy)(self.handle) };
    }
}

fn load(
    library: &'static str,
    given: Option<&Path>,
    names: &[&str],
) -> Result<(PathBuf, Library), GpuError> {
    let paths = match given {
        Some(path) => vec![path.to_owned()],
        None => names.iter().map(PathBuf::from).collect(),
    };
    let mut attempts = Vec::new();
    for path in paths {
        // SAFETY: NVIDIA's libraries may be loaded at any time. A file that the user names is the user's choice.
        match unsafe { Library::new(&path) } {
            Ok(found) => return Ok((path, found)),
            Err(error) => attempts.push(error.to_string()),
        }
    }
    Err(GpuError::NoLibrary { library, attempts })
}

fn check(function: &'static str, status: c_int) -> Result<(), GpuError> {
    match status {
        0 => Ok(()),
        status => Err(GpuError::Failed { function, status }),
    }
}

/// Something that has to be released.
struct Owned {
    pointer: Pointer,
    release: unsafe extern "C" fn(Pointer) -> c_int,
}

impl Owned {
    /// # Safety
    ///
    /// `create` writes a pointer that `release` takes once, while the library is loaded; the result does not outlive that.
    unsafe fn new(
        function: &'static str,
        create: impl FnOnce(*mut Pointer) -> c_int,
        release: unsafe extern "C" fn(Pointer) -> c_int,
    ) -> Result<Owned, GpuError> {
        let mut pointer = null_mut();
        check(function, create(&mut pointer))?;
        Ok(Owned { pointer, release })
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: by the promise to `new`.
        unsafe { (self.release)(self.pointer) };
    }
}

/// A convolution with descriptors and memory for all its operands.
struct Prepared<'g> {
    gpu: &'g Gpu,
    /// In double precision the factors are doubles.
    is_double: bool,
    /// Data, weights, results: descriptors and buffers.
    data: (Owned, Owned),
    weights: (Owned, Owned),
    windows: (Owned, Owned),
    convolution: Owned,
    events: [Owned; 2],
}

impl<'g> Prepared<'g> {
    fn of(gpu: &'g Gpu, geometry: &Geometry) -> Result<Prepared<'g>, GpuError> {
        let unsupported = || GpuError::Unsupported(format!("a convolution of {:?}", geometry.data));
        // CUDNN_DATA_FLOAT, _DOUBLE, _HALF, _BFLOAT16; what is narrower adds up in floats.
        let (element, compute) = match geometry.element {
            ElementType::Float => (0, 0),
            ElementType::Double => (1, 1),
            ElementType::Float16 => (2, 0),
            ElementType::Bfloat16 => (9, 0),
            _ => return Err(unsupported()),
        };
        let ints = |list: &[u64]| -> Result<Vec<c_int>, GpuError> {
            let all = list.iter().map(|&n| c_int::try_from(n).ok());
            all.collect::<Option<_>>().ok_or_else(unsupported)
        };
        // cuDNN knows no fewer than two axes: the runtime adds one of size 1.
        let two = |list: &[u64], at_least: usize, filling: u64| {
            let mut list = list.to_vec();
            list.resize(list.len().max(at_least), filling);
            ints(&list)
        };
        let bytes = |dims: &[c_int]| -> Result<usize, GpuError> {
            let width = geometry.element.bytes(1).0 as usize;
            let all = dims.iter().map(|&n| n as usize);
            let mut all = all.chain([width]);
            all.try_fold(1usize, |product, n| product.checked_mul(n))
                .filter(|&bytes| bytes > 0)
                .ok_or_else(unsupported)
        };
        let dnn = &gpu.dnn;
        let tensor = |dims: &[u64]| -> Result<(Owned, Owned), GpuError> {
            let dims = two(dims, 4, 1)?;
            let mut strides = vec![1; dims.len()];
            for axis in (1..dims.len()).rev() {
                let stride: c_int = strides[axis];
                strides[axis - 1] = stride.checked_mul(dims[axis]).ok_or_else(unsupported)?;
            }
            // SAFETY: the pair belongs together; `gpu` outlives it.
            let descriptor = unsafe {
                Owned::new(
                    "cudnnCreateTensorDescriptor",
                    |out| (dnn.cudnnCreateTensorDescriptor)(out),
                    dnn.cudnnDestroyTensorDescriptor,
                )
            }?;
            // SAFETY: both lists have that many numbers.
            check("cudnnSetTensorNdDescriptor", unsafe {
                let axes = dims.len() as c_int;
                let (dims, strides) = (dims.as_ptr(), strides.as_ptr());
                (dnn.cudnnSetTensorNdDescriptor)(descriptor.pointer, element, axes, dims, strides)
            })?;
            Ok((descriptor, gpu.allocate(bytes(&dims)?)?))
        };
        let weights = {
            let dims = two(&geometry.weights, 4, 1)?;
            // SAFETY: as above.
            let descriptor = unsafe {
                Owned::new(
                    "cudnnCreateFilterDescriptor",
                    |out| (dnn.cudnnCreateFilterDescriptor)(out),
                    dnn.cudnnDestroyFilterDescriptor,
                )
            }?;
            // SAFETY: the list has that many numbers.
            check("cudnnSetFilterNdDescriptor", unsafe {
                let axes = dims.len() as c_int;
                (dnn.cudnnSetFilterNdDescriptor)(
                    descriptor.pointer,
                    element,
                    NCHW,
                    axes,
                    dims.as_ptr(),
                )
            })?;
            (descriptor, gpu.allocate(bytes(&dims)?)?)
        };
        // SAFETY: as above.
        let convolution = unsafe {
            Owned::new(
                "cudnnCreateConvolutionDescriptor",
                |out| (dnn.cudnnCreateConvolutionDescriptor)(out),
                dnn.cudnnDestroyConvolutionDescriptor,
            )
        }?;
        let pads = two(&geometry.pads, 2, 0)?;
        let (strides, dilations) = (
            two(&geometry.strides, 2, 1)?,
            two(&geometry.dilations, 2, 1)?,
        );
        let groups = c_int::try_from(geometry.groups).map_err(|_| unsupported())?;
        // CUDNN_DEFAULT_MATH, and CUDNN_TENSOR_OP_MATH for what is narrow, as the runtime has it.
        let math = c_int::from(element != compute);
        // SAFETY: the lists have a number for each axis.
        unsafe {
            check(
                "cudnnSetConvolutionNdDescriptor",
                (dnn.cudnnSetConvolutionNdDescriptor)(
                    convolution.pointer,
                    pads.len() as c_int,
                    pads.as_ptr(),
                    strides.as_ptr(),
                    dilations.as_ptr(),
                    CROSS_CORRELATION,
                    compute,
                ),
            )?;
            let descriptor = convolution.pointer;
            check(
                "cudnnSetConvolutionGroupCount",
                (dnn.cudnnSetConvolutionGroupCount)(descriptor, groups),
            )?;
            check(
                "cudnnSetConvolutionMathType",
                (dnn.cudnnSetConvolutionMathType)(descriptor, math),
            )?;
        }
        let event = || {
            let cuda = &gpu.cuda;
            // SAFETY: as above.
            unsafe {
                Owned::new(
                    "cudaEventCreate",
                    |out| (cuda.cudaEventCreate)(out),
                    cuda.cudaEventDestroy,
                )
            }
        };
        Ok(Prepared {
            gpu,
            is_double: element == 1,
            data: tensor(&geometry.data)?,
            weights,
            windows: tensor(&geometry.windows)?,
            convolution,
            events: [event()?, event()?],
        })
    }

    /// `None` where cuDNN has no such algorithm for it.
    fn workspace(&self, direction: Direction, algorithm: c_int) -> Option<usize> {
        let dnn = &self.gpu.dnn;
        let [data, weights, windows] =
            [&self.data, &self.weights, &self.windows].map(|pair| pair.0.pointer);
        let (function, one, two, three) = match direction {
            Direction::Forward => (
                dnn.cudnnGetConvolutionForwardWorkspaceSize,
                data,
                weights,
                windows,
            ),
            Direction::BackwardData => (
                dnn.cudnnGetConvolutionBackwardDataWorkspaceSize,
                weights,
                windows,
                data,
            ),
            Direction::BackwardFilter => (
                dnn.cudnnGetConvolutionBackwardFilterWorkspaceSize,
                data,
                windows,
                weights,
            ),
        };
        let mut bytes = 0;
        let convolution = self.convolution.pointer;
        // SAFETY: the descriptors are alive and of the kinds that it takes, in its sequence.
        let status = unsafe {
            function(
                self.gpu.handle,
                one,
                two,
                convolution,
                three,
                algorithm,
                &mut bytes,
            )
        };
        (status == 0).then_some(bytes)
    }

    /// The least time in milliseconds; `None` where it does not run.
    fn time(&self, direction: Direction, algorithm: c_int, bytes: usize) -> Option<f32> {
        let workspace = match bytes {
            0 => None,
            bytes => Some(self.gpu.allocate(bytes).ok()?),
        };
        let workspace = workspace.as_ref().map_or(null_mut(), |owned| owned.pointer);
        let mut least = f32::INFINITY;
        for run in 0..=RUNS {
            let took = self.run(direction, algorithm, workspace, bytes)?;
            if run > 0 {
                least = least.min(took);
            }
        }
        Some(least)
    }

    fn run(
        &self,
        direction: Direction,
        algorithm: c_int,
        workspace: Pointer,
        bytes: usize,
    ) -> Option<f32> {
        let (dnn, cuda) = (&self.gpu.dnn, &self.gpu.cuda);
        let (data, weights, windows) = (&self.data, &self.weights, &self.windows);
        let (function, [one, two, result]) = match direction {
            Direction::Forward => (dnn.cudnnConvolutionForward, [data, weights, windows]),
            Direction::BackwardData => (dnn.cudnnConvolutionBackwardData, [weights, windows, data]),
            Direction::BackwardFilter => {
                (dnn.cudnnConvolutionBackwardFilter, [data, windows, weights])
            }
        };
        let (doubles, floats) = ([1.0f64, 0.0], [1.0f32, 0.0]);
        let factor = |at: usize| -> *const c_void {
            match self.is_double {
                true => (&raw const doubles[at]).cast(),
                false => (&raw const floats[at]).cast(),
            }
        };
        let [begin, end] = [0, 1].map(|at: usize| self.events[at].pointer);
        let mut took = 0.0;
        // SAFETY: descriptors and buffers are alive and belong together, the workspace has that many bytes, the factors
        // have the type that cuDNN wants and outlive the calls; events are alive, on the default stream.
        let statuses = unsafe {
            [
                (cuda.cudaEventRecord)(begin, null_mut()),
                function(
                    self.gpu.handle,
                    factor(0),
                    one.0.pointer,
                    one.1.pointer,
                    two.0.pointer,
                    two.1.pointer,
                    self.convolution.pointer,
                    algorithm,
                    workspace,
                    bytes,
                    factor(1),
                    result.0.pointer,
                    result.1.pointer,
                ),
                (cuda.cudaEventRecord)(end, null_mut()),
                (cuda.cudaEventSynchronize)(end),
                (cuda.cudaEventElapsedTime)(&mut took, begin, end),
            ]
        };
        (statuses == [0; 5]).then_some(took)
    }
}

impl Gpu {
    /// That many bytes on the GPU, all 0.
    fn allocate(&self, bytes: usize) -> Result<Owned, GpuError> {
        let cuda = &self.cuda;
        // SAFETY: the pair belongs together; nothing that is allocated outlives `self`.
        let buffer = unsafe {
            Owned::new(
                "cudaMalloc",
                |out| (cuda.cudaMalloc)(out, bytes),
                cuda.cudaFree,
            )
        }?;
        // SAFETY: the buffer has that many bytes.
        check("cudaMemset", unsafe {
            (cuda.cudaMemset)(buffer.pointer, 0, bytes)
        })?;
        Ok(buffer)
    }
}

/// `cudnn 9.1.0`.
pub fn name_of(version: usize) -> String {
    let (major, rest) = match version {
        90_000.. => (version / 10_000, version % 10_000),
        _ => (version / 1_000, version % 1_000),
    };
    format!("cudnn {major}.{}.{}", rest / 100, rest % 100)
}
