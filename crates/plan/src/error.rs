//! What can go wrong.

/// A graph that cannot be recorded or compiled for a card.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error(transparent)]
    Model(#[from] model::ModelError),
    #[error(transparent)]
    Graph(#[from] graph::GraphError),
    #[error(transparent)]
    Cuda(#[from] cuda::CudaError),
}
