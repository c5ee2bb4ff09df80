//! Places that clients share fairly: a semaphore whose waiting clients take turns.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

/// A number of places, and a limited queue for them.
///
/// # Fairness
///
/// A free place goes to the client whose turn it is: each client that waits gets one place before another one gets its
/// second. A client may have at most as many waiters as the queue has room left, so one client alone fills half of it, and
/// two fill a third each.
#[derive(Debug)]
pub struct FairPlaces {
    places: usize,
    waiters_max: usize,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    used: usize,
    waiters: usize,
    /// Clients with waiters, in the order of their turns.
    turns: VecDeque<IpAddr>,
    by_client: FxHashMap<IpAddr, VecDeque<Waiter>>,
    next_number: u64,
}

/// One that waits for a place.
#[derive(Debug)]
struct Waiter {
    number: u64,
    place: oneshot::Sender<Place>,
}

/// The client has its part of the queue.
#[derive(Debug)]
pub struct QueueFull;

/// A place, given to the next waiter when it is dropped.
#[derive(Debug)]
pub struct Place(Arc<FairPlaces>);

impl FairPlaces {
    /// This number of places, for which at most `waiters_max` wait.
    #[must_use]
    pub fn new(places: usize, waiters_max: usize) -> Arc<Self> {
        Arc::new(Self { places, waiters_max, queue: Mutex::default() })
    }

    /// Waits for a place. Dropping the future ends the wait.
    pub async fn acquire(self: &Arc<Self>, client: IpAddr) -> Result<Place, QueueFull> {
        let mut waiting = {
            let mut queue = self.queue.lock();
            if queue.used < self.places {
                queue.used += 1;
                return Ok(Place(Arc::clone(self)));
            }
            let of_client = queue.by_client.get(&client).map_or(0, VecDeque::len);
            if of_client >= self.waiters_max - queue.waiters {
                return Err(QueueFull);
            }
            let (number, place) = queue.push(client);
            PlaceWait { places: self, client, number, place }
        };
        Ok((&mut waiting.place).await.expect("a waiter leaves the queue with a place, or when it is dropped"))
    }

    /// Number of places in use, and of waiters.
    #[cfg(any(test, feature = "fault-injection"))]
    pub fn occupied(&self) -> (usize, usize) {
        let queue = self.queue.lock();
        (queue.used, queue.waiters)
    }
}

impl Queue {
    fn push(&mut self, client: IpAddr) -> (u64, oneshot::Receiver<Place>) {
        let (place, receiver) = oneshot::channel();
        let number = self.next_number;
        self.next_number += 1;
        self.waiters += 1;
        let of_client = self.by_client.entry(client).or_default();
        if of_client.is_empty() {
            self.turns.push_back(client);
        }
        of_client.push_back(Waiter { number, place });
        (number, receiver)
    }

    /// Takes the first waiter of the client whose turn it is.
    fn pop(&mut self) -> Option<Waiter> {
        let client = self.turns.pop_front()?;
        let of_client = self.by_client.get_mut(&client).expect("a client with a turn waits");
        let waiter = of_client.pop_front();
        if of_client.is_empty() {
            self.by_client.remove(&client);
        } else {
            self.turns.push_back(client);
        }
        self.waiters -= 1;
        waiter
    }

    fn remove(&mut self, client: IpAddr, number: u64) {
        let Some(of_client) = self.by_client.get_mut(&client) else { return };
        let Some(position) = of_client.iter().position(|waiter| waiter.number == number) else { return };
        of_client.remove(position);
        self.waiters -= 1;
        if of_client.is_empty() {
            self.by_client.remove(&client);
            self.turns.retain(|turn| *turn != client);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let next = {
            let mut queue = self.0.queue.lock();
            let next = queue.pop();
            if next.is_none() {
                queue.used -= 1;
            }
            next
        };
        if let Some(next) = next {
            // A waiter that ended meanwhile returns the place, whose drop gives it to the next one.
            drop(next.place.send(Self(Arc::clone(&self.0))));
        }
    }
}

/// Wait for a place; leaves the queue when it is dropped.
struct PlaceWait<'p> {
    places: &'p FairPlaces,
    client: IpAddr,
    number: u64,
    place: oneshot::Receiver<Place>,
}

impl Drop for PlaceWait<'_> {
    fn drop(&mut self) {
        self.places.queue.lock().remove(self.client, self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    type Acquiring<'p> = Pin<Box<dyn Future<Output = Result<Place, QueueFull>> + 'p>>;

    fn client(number: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, number).into()
    }

    fn poll(waiter: &mut Acquiring<'_>) -> Poll<Result<Place, QueueFull>> {
        waiter.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    /// A waiter of a client that has joined the queue.
    fn wait(places: &Arc<FairPlaces>, number: u8) -> Acquiring<'_> {
        let mut waiter: Acquiring<'_> = Box::pin(places.acquire(client(number)));
        assert!(poll(&mut waiter).is_pending(), "there is no place, and the queue has room");
        waiter
    }

    fn is_refused(places: &Arc<FairPlaces>, number: u8) -> bool {
        let mut waiter: Acquiring<'_> = Box::pin(places.acquire(client(number)));
        matches!(poll(&mut waiter), Poll::Ready(Err(QueueFull)))
    }

    fn place(places: &Arc<FairPlaces>) -> Place {
        let mut waiter: Acquiring<'_> = Box::pin(places.acquire(client(0)));
        let Poll::Ready(Ok(place)) = poll(&mut waiter) else { panic!("a place is free") };
        place
    }

    #[test]
    fn clients_take_turns_whatever_the_number_of_their_waiters() {
        let places = FairPlaces::new(1, 100);
        let mut place = place(&places);
        let mut waiters: Vec<_> = (0..6).map(|_| (1, wait(&places, 1))).collect();
        waiters.extend([(2, wait(&places, 2)), (2, wait(&places, 2)), (3, wait(&places, 3))]);
        let mut order = Vec::new();
        while !waiters.is_empty() {
            drop(place);
            let mut given = Vec::new();
            waiters.retain_mut(|(number, waiter)| match poll(waiter) {
                Poll::Pending => true,
                Poll::Ready(got) => {
                    given.push((*number, got.expect("a place")));
                    false
                }
            });
            let Some((number, got)) = given.pop() else { panic!("the place was given to none") };
            assert!(given.is_empty(), "there is one place");
            order.push(number);
            place = got;
        }
        assert_eq!(order, [1, 2, 3, 1, 2, 1, 1, 1, 1]);
        drop(place);
        assert_eq!(places.occupied(), (0, 0));
    }

    #[test]
    fn a_client_has_as_many_waiters_as_there_is_room_left() {
        let places = FairPlaces::new(2, 12);
        let _places = [place(&places), place(&places)];
        let mut first: Vec<_> = (0..6).map(|_| wait(&places, 1)).collect();
        assert!(is_refused(&places, 1), "half of the queue");
        let second: Vec<_> = (0..3).map(|_| wait(&places, 2)).collect();
        assert!(is_refused(&places, 2), "as many as there is room left");
        let _third = wait(&places, 3);
        drop(second);
        assert!(is_refused(&places, 1), "it has six, and there is room for five");
        first.pop();
        first.push(wait(&places, 1));
        assert!(is_refused(&places, 1));
        assert_eq!(places.occupied(), (2, 7));
    }

    #[test]
    fn a_waiter_that_ends_gives_its_place_to_the_next_one() {
        let places = FairPlaces::new(1, 12);
        let first = place(&places);
        let (ended, given, mut last) = (wait(&places, 1), wait(&places, 2), wait(&places, 3));
        drop(ended);
        drop(first);
        // The place was sent to it, and it has not received it.
        drop(given);
        let Poll::Ready(Ok(got)) = poll(&mut last) else { panic!("the place was lost") };
        drop(got);
        assert_eq!(places.occupied(), (0, 0));
        assert!(places.queue.lock().by_client.is_empty() && places.queue.lock().turns.is_empty());
    }
}
