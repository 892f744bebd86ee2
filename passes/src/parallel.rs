//! The same work on however many processors there are, with the same result.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

/// `work` of every item, in the items' order.
pub(crate) fn map<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let workers = thread::available_parallelism()
        .map_or(1, usize::from)
        .min(items.len());
    if workers <= 1 {
        return items.iter().map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let (send, receive) = mpsc::channel();
    let take = |send: mpsc::Sender<(usize, R)>| {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { break };
            // The receiver outlives all senders.
            let _ = send.send((index, work(item)));
        }
    };
    thread::scope(|scope| {
        for _ in 1..workers {
            let (send, take) = (send.clone(), &take);
            let spawned = thread::Builder::new().spawn_scoped(scope, move || take(send));
            if spawned.is_err() {
                // The system has no thread to spare: there is nobody but us.
                break;
            }
        }
        take(send);
    });
    let mut done: Vec<(usize, R)> = receive.into_iter().collect();
    done.sort_by_key(|&(index, _)| index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// The same of items that it changes.
pub(crate) fn map_mut<T: Send, R: Send>(
    items: &mut [T],
    work: impl Fn(&mut T) -> R + Sync,
) -> Vec<R> {
    let items: Vec<Mutex<&mut T>> = items.iter_mut().map(Mutex::new).collect();
    map(&items, |item| {
        work(&mut item.lock().unwrap_or_else(PoisonError::into_inner))
    })
}

/// Both, the first beside the second if there is a processor for it.
pub(crate) fn both<A: Send, B>(
    first: impl FnOnce() -> A + Send,
    second: impl FnOnce() -> B,
) -> (A, B) {
    if thread::available_parallelism().map_or(1, usize::from) == 1 {
        return (first(), second());
    }
    // Where the system has no thread to spare, the work is still there to be done here.
    let first = Mutex::new(Some(first));
    let run = || {
        let first = first.lock().ok().and_then(|mut first| first.take());
        first.expect("it is taken once")()
    };
    thread::scope(
        |scope| match thread::Builder::new().spawn_scoped(scope, run) {
            Ok(thread) => {
                let second = second();
                match thread.join() {
                    Ok(first) => (first, second),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            Err(_) => (run(), second()),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::{both, map, map_mut};

    #[test]
    fn both_are_done() {
        assert_eq!(both(|| 1, || "two"), (1, "two"));
    }

    #[test]
    fn results_come_in_the_order_of_the_items() {
        let items: Vec<u64> = (0..200).collect();
        // The first items take longest.
        let slow = |&n: &u64| (0..(200 - n) * 1000).fold(n, |sum, k| sum ^ std::hint::black_box(k));
        let expected: Vec<u64> = items.iter().map(slow).collect();
        assert_eq!(map(&items, slow), expected);
        assert_eq!(map(&[], slow), []);
        let mut changed = items.clone();
        let doubled = map_mut(&mut changed, |n| {
            *n *= 2;
            *n
        });
        assert_eq!(doubled, changed);
        assert_eq!(changed[199], 398);
    }
}
