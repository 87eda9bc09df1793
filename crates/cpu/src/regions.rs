//! The flat buffers that outlive steps.

use crate::Element;
use graph::{ExecError, Region, StateSpec};

/// Master weights, gradients, optimiser state, averages and running statistics, all in the layout of one
/// [`graph::ParamLayout`].
pub(crate) struct Regions<T> {
    spec: StateSpec,
    regions: Vec<(Region, Vec<T>)>,
}

impl<T: Element> Regions<T> {
    pub fn new(spec: StateSpec) -> Self {
        let regions = spec.regions().into_iter().map(|(region, len)| (region, vec![T::zero(); len])).collect();
        Self { spec, regions }
    }

    pub fn get(&self, region: Region) -> Result<&[T], ExecError> {
        let found = self.regions.iter().find(|r| r.0 == region);
        found.map(|r| r.1.as_slice()).ok_or(ExecError::NoRegion(region))
    }

    pub fn get_mut(&mut self, region: Region) -> Result<&mut [T], ExecError> {
        let found = self.regions.iter_mut().find(|r| r.0 == region);
        found.map(|r| r.1.as_mut_slice()).ok_or(ExecError::NoRegion(region))
    }

    pub fn spec(&self) -> &StateSpec {
        &self.spec
    }

    /// Several regions at once, and what they are laid out by; absent ones come as empty slices.
    pub fn many<const N: usize>(&mut self, wanted: [Region; N]) -> (&StateSpec, [&mut [T]; N]) {
        let mut out: [&mut [T]; N] = std::array::from_fn(|_| &mut [][..]);
        for (region, values) in &mut self.regions {
            if let Some(at) = wanted.iter().position(|w| w == region) {
                out[at] = values;
            }
        }
        (&self.spec, out)
    }
}
