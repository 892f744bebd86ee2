//! What an input may take: memory, counted by the allocator, and time, watched by a thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How a process ends whose input took too long, or too much memory.
pub const TOO_LONG: i32 = 70;
/// The same of memory.
pub const TOO_MUCH: i32 = 71;

/// Bytes in use.
static IN_USE: AtomicUsize = AtomicUsize::new(0);
/// More than this ends the process.
static MOST: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Counts inputs.
static INPUT: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, with a limit.
pub struct Limited;

// SAFETY: every call goes to the system's allocator as it is; what is counted beside it changes nothing.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        take(size);
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn take(bytes: usize) {
    let before = IN_USE.fetch_add(bytes, Ordering::Relaxed);
    if before.saturating_add(bytes) > MOST.load(Ordering::Relaxed) {
        // SAFETY: ends the process without running anything else, which may be called anywhere.
        unsafe { libc::_exit(TOO_MUCH) }
    }
}

/// Ends the process with [`TOO_MUCH`] once it uses more, and with [`TOO_LONG`] once an input takes longer: so much of a
/// processor, or ten times that while it waits or others run.
pub fn enforce(memory: usize, time: Duration) {
    MOST.store(memory, Ordering::Relaxed);
    std::thread::spawn(move || {
        let (mut watched, mut wall, mut cpu) = (0, Instant::now(), processor_time());
        loop {
            std::thread::sleep(Duration::from_millis(100));
            let input = INPUT.load(Ordering::Acquire);
            if input != watched {
                (watched, wall, cpu) = (input, Instant::now(), processor_time());
            } else if processor_time().saturating_sub(cpu) > time || wall.elapsed() > 10 * time {
                std::process::exit(TOO_LONG);
            }
        }
    });
}

/// An input begins.
pub fn begin() {
    INPUT.fetch_add(1, Ordering::AcqRel);
}

/// What the process has used of processors.
fn processor_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the place is valid, and all that is written is in it.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Keeps the process to one processor, where the system lets it: what works on several threads then starts none.
pub fn keep_to_processor(number: usize) {
    // SAFETY: the set is a plain array of bits, all zero at first, and the number is within it.
    #[cfg(target_os = "linux")]
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(number % libc::CPU_SETSIZE as usize, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = number;
}
