//! Hyper-parameters, schedules, optimiser, training loop, checkpoints and resume
