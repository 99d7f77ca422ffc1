//! What goes on for an address after a call has returned.

use tokio::task::AbortHandle;

/// A task that ends with this value. One that outlived its driver would speak for an address that has moved on, and
/// nobody could end it.
#[derive(Debug)]
pub(super) struct Ongoing(AbortHandle);

impl Ongoing {
    pub(super) fn begin<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> Self {
        Self(tokio::spawn(task).abort_handle())
    }

    pub(super) fn is_at_work(&self) -> bool {
        !self.0.is_finished()
    }
}

impl Drop for Ongoing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_ends_with_its_driver() {
        let (goes_on, gone) = tokio::sync::oneshot::channel::<()>();
        let task = Ongoing::begin(async move {
            let _goes_on = goes_on;
            std::future::pending::<()>().await;
        });
        assert!(task.is_at_work());
        drop(task);
        assert!(gone.await.is_err());
    }
}
