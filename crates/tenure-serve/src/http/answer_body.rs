//! The bodies of answers.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::task::yield_now;

use crate::service::places::InProgress;
use crate::service::work::TURN_BYTES;

/// The body of an answer, whose request is in progress until all of it is sent. A long body is sent in turns with others.
pub(super) struct AnswerBody {
    body: Body,
    /// The part of a frame that is not sent yet.
    rest: Bytes,
    /// The turns of others, before the rest is sent.
    others: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    _in_progress: InProgress,
}

impl AnswerBody {
    pub(super) fn new(body: Body, in_progress: InProgress) -> Self {
        Self { body, rest: Bytes::new(), others: None, _in_progress: in_progress }
    }

    /// Takes the bytes of one turn from the rest.
    fn next_part(&mut self) -> Frame<Bytes> {
        let part = self.rest.split_to(self.rest.len().min(TURN_BYTES));
        self.others = (!self.rest.is_empty()).then(|| Box::pin(yield_now()) as _);
        Frame::data(part)
    }
}

impl hyper::body::Body for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(others) = &mut self.others {
            ready!(others.as_mut().poll(context));
            return Poll::Ready(Some(Ok(self.next_part())));
        }
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)).transpose()? else {
            return Poll::Ready(None);
        };
        Poll::Ready(Some(Ok(match frame.into_data() {
            Ok(data) => {
                self.rest = data;
                self.next_part()
            }
            Err(trailers) => trailers,
        })))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let body = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower() + rest);
        if let Some(upper) = body.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::Ipv4Addr;

    use http_body_util::BodyExt;
    use hyper::body::Body as _;
    use tokio::runtime;

    use super::*;
    use crate::service::places::Places;

    fn held(bytes: usize) -> AnswerBody {
        let (place, _) = Places::new(1).enter(Ipv4Addr::LOCALHOST.into());
        AnswerBody::new(Body::from(vec![7; bytes]), place.begin())
    }

    #[test]
    fn others_run_between_the_parts_of_a_long_body() {
        let runtime = runtime::Builder::new_current_thread().build().unwrap();
        let turns = Cell::new(0);
        let others = async {
            loop {
                turns.set(turns.get() + 1);
                yield_now().await;
            }
        };
        let receive = async {
            let mut body = held(2 * TURN_BYTES + 5);
            let mut parts = Vec::new();
            while let Some(frame) = body.frame().await {
                parts.push((frame.unwrap().into_data().unwrap().len(), turns.get()));
                assert_eq!(body.is_end_stream(), parts.len() == 3);
            }
            parts
        };
        let parts = runtime.block_on(async {
            tokio::select! {
                biased;
                parts = receive => parts,
                () = others => unreachable!(),
            }
        });
        assert_eq!(parts, [(TURN_BYTES, 0), (TURN_BYTES, 1), (5, 2)]);
    }

    #[test]
    fn a_body_says_how_long_its_rest_is() {
        let runtime = runtime::Builder::new_current_thread().build().unwrap();
        let mut body = held(TURN_BYTES + 5);
        assert_eq!(body.size_hint().exact(), Some(TURN_BYTES as u64 + 5));
        runtime.block_on(body.frame()).unwrap().unwrap();
        assert_eq!(body.size_hint().exact(), Some(5));
    }
}
