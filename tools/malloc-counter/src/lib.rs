//! Counts what a process allocates, to the byte: `LD_PRELOAD=libmalloc_counter.so program`.
//!
//! Every block carries a 16-byte header with the size that was *asked for*, so the counts are
//! sums of requested sizes: they repeat from run to run and compare directly with sizes of
//! tensors. (`malloc_usable_size` would add what the allocator's bins and pages happen to round
//! up.) The program reads them through [`ckpt_live_bytes`], [`ckpt_peak_bytes`] and
//! [`ckpt_reset_peak`].
//!
//! The blocks themselves come from glibc's `__libc_*` entry points. The usual
//! `dlsym(RTLD_NEXT, "malloc")` allocates before it has an answer.
//!
//! These are the ten functions that glibc's manual lists for replacing `malloc`. With any other C
//! library this crate is empty.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_memalign(alignment: usize, size: usize) -> *mut c_void;
    fn __libc_free(block: *mut c_void);
}

/// Bytes asked for and not yet freed.
static LIVE: AtomicUsize = AtomicUsize::new(0);
/// The largest [`LIVE`] since the last [`ckpt_reset_peak`].
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// What stands directly before every pointer that is handed out.
#[repr(C)]
struct Header {
    /// The size that was asked for.
    size: usize,
    /// From the start of glibc's block to the pointer handed out.
    offset: usize,
}

/// Keeps the pointers that are handed out as aligned as those that glibc returns (16 bytes).
const HEADER: usize = size_of::<Header>();

/// What all threads together hold now, in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn ckpt_live_bytes() -> usize {
    LIVE.load(Relaxed)
}

/// The most that all threads together have held since [`ckpt_reset_peak`], in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn ckpt_peak_bytes() -> usize {
    PEAK.load(Relaxed)
}

/// Makes the present amount the peak. Meant to be called while no other thread allocates.
#[unsafe(no_mangle)]
pub extern "C" fn ckpt_reset_peak() {
    PEAK.store(LIVE.load(Relaxed), Relaxed);
}

/// Fills in the header in front of `block + offset` and counts the block.
///
/// # Safety
///
/// `block` is null or a fresh block of glibc's with at least `offset + size` bytes;
/// `offset >= HEADER` and keeps 16-byte alignment.
unsafe fn hand_out(block: *mut c_void, offset: usize, size: usize) -> *mut c_void {
    if block.is_null() {
        return null_mut();
    }
    // SAFETY: the caller promises that [block, block + offset + size) is ours, and that the
    // header fits between `block` and the pointer handed out.
    let pointer = unsafe {
        let pointer = block.byte_add(offset);
        pointer
            .byte_sub(HEADER)
            .cast::<Header>()
            .write(Header { size, offset });
        pointer
    };
    let live = LIVE.fetch_add(size, Relaxed) + size;
    PEAK.fetch_max(live, Relaxed);
    pointer
}

/// Reads the header of a block that [`hand_out`] returned.
///
/// # Safety
///
/// `pointer` came from [`hand_out`] and was not freed since.
unsafe fn header(pointer: *mut c_void) -> Header {
    // SAFETY: `hand_out` wrote a header there.
    unsafe { pointer.byte_sub(HEADER).cast::<Header>().read() }
}

/// A block of `size` bytes at a multiple of `alignment`, a power of two.
fn aligned(alignment: usize, size: usize) -> *mut c_void {
    if alignment <= HEADER {
        return malloc(size);
    }
    let Some(total) = size.checked_add(alignment) else {
        return null_mut();
    };
    // SAFETY: the block starts at a multiple of `alignment`, and so does the pointer one
    // alignment further, which is more than a header.
    unsafe { hand_out(__libc_memalign(alignment, total), alignment, size) }
}

/// Replaces `malloc`.
#[unsafe(no_mangle)]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    let Some(total) = size.checked_add(HEADER) else {
        return null_mut();
    };
    // SAFETY: the block has `HEADER + size` bytes.
    unsafe { hand_out(__libc_malloc(total), HEADER, size) }
}

/// Replaces `calloc`.
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let Some(size) = count.checked_mul(size) else {
        return null_mut();
    };
    let Some(total) = size.checked_add(HEADER) else {
        return null_mut();
    };
    // SAFETY: the block has `HEADER + size` bytes.
    unsafe { hand_out(__libc_calloc(1, total), HEADER, size) }
}

/// Replaces `free`.
///
/// # Safety
///
/// As `free`: `pointer` is null or came from one of these functions and was not freed since.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(pointer: *mut c_void) {
    if pointer.is_null() {
        return;
    }
    // SAFETY: `pointer` came from `hand_out`, so `offset` leads back to glibc's block.
    unsafe {
        let Header { size, offset } = header(pointer);
        LIVE.fetch_sub(size, Relaxed);
        __libc_free(pointer.byte_sub(offset));
    }
}

/// Replaces `realloc`. Always moves: while it copies, both blocks count.
///
/// # Safety
///
/// As `realloc`: `pointer` is null or came from one of these functions and was not freed since.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(pointer: *mut c_void, size: usize) -> *mut c_void {
    if pointer.is_null() {
        return malloc(size);
    }
    if size == 0 {
        // SAFETY: as promised by the caller.
        unsafe { free(pointer) };
        return null_mut();
    }
    let moved = malloc(size);
    if !moved.is_null() {
        // SAFETY: both blocks are live, distinct, and at least as long as the bytes copied.
        unsafe {
            let old = header(pointer).size;
            libc::memcpy(moved, pointer, old.min(size));
            free(pointer);
        }
    }
    moved
}

/// Replaces `memalign`.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(alignment: usize, size: usize) -> *mut c_void {
    match alignment.checked_next_power_of_two() {
        Some(alignment) => aligned(alignment, size),
        None => null_mut(),
    }
}

/// Replaces `aligned_alloc`.
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    memalign(alignment, size)
}

/// Replaces `posix_memalign`.
///
/// # Safety
///
/// `result` points to a pointer that may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(
    result: *mut *mut c_void,
    alignment: usize,
    size: usize,
) -> c_int {
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    let pointer = aligned(alignment, size);
    if pointer.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: as promised by the caller.
    unsafe { *result = pointer };
    0
}

/// Replaces `valloc`.
#[unsafe(no_mangle)]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    aligned(page(), size)
}

/// Replaces `pvalloc`.
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    match size.checked_next_multiple_of(page()) {
        Some(size) => aligned(page(), size),
        None => null_mut(),
    }
}

/// Replaces `malloc_usable_size`.
///
/// # Safety
///
/// `pointer` is null or came from one of these functions and was not freed since.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(pointer: *mut c_void) -> usize {
    if pointer.is_null() {
        return 0;
    }
    // SAFETY: `pointer` came from `hand_out`.
    unsafe { header(pointer).size }
}

/// The size of a page, in bytes.
fn page() -> usize {
    // SAFETY: `sysconf` has no preconditions.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}
