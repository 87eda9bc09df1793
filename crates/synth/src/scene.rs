//! What is on a picture: its size, background and objects.

use crate::classes::Look;
use rand::{Rng, RngExt};
use rand_distr::{Distribution, LogNormal, Poisson};

/// Sizes of pictures with their shares in percent: mostly 4:3 and 3:2, one in four upright.
const SIZES: [([u32; 2], u32); 7] = [
    ([640, 480], 43),
    ([640, 427], 24),
    ([640, 360], 5),
    ([640, 640], 3),
    ([480, 640], 15),
    ([427, 640], 8),
    ([360, 640], 2),
];
/// Mean number of objects.
const OBJECTS: f64 = 7.0;
/// Side of an object in pixels, as the square root of its area: median, and standard deviation of the logarithm. 41 % are
/// below 32 and 24 % above 96, as in COCO.
const SIDE: (f64, f64) = (41.8, 1.18);
/// Standard deviation of the logarithm of width to height.
const ASPECT: f64 = 0.4;
/// Smallest and largest side of a box: in pixels, and as a fraction of the picture's.
const SMALLEST: f32 = 5.0;
const LARGEST: f32 = 0.95;
/// Places that are tried for an object.
const TRIES: usize = 12;
/// Share of an object that others may hide.
const HIDDEN: f32 = 0.35;

/// One object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Object {
    pub class: u32,
    /// Left, top, width and height in pixels, inside of the picture.
    pub xywh: [f32; 4],
    pub look: Look,
    /// Factor of its colours.
    pub light: f32,
    /// Contrast of the noise on it.
    pub grain: f32,
}

/// A part of the background: the half plane where `normal · (x, y) + wobble · noise > offset`, in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layer {
    pub normal: [f32; 2],
    pub offset: f32,
    pub wobble: f32,
    /// Colours, 0 to 255, at its edge and 640 pixels from it.
    pub colours: [[f32; 3]; 2],
    /// Contrast of the noise on it.
    pub grain: f32,
}

/// A picture before it is painted.
#[derive(Clone, Debug, PartialEq)]
pub struct Scene {
    /// Width and height in pixels.
    pub size: [u32; 2],
    /// From back to front; the first covers everything.
    pub layers: Vec<Layer>,
    /// From back to front: larger ones first.
    pub objects: Vec<Object>,
    /// See [`crate::noise::field`].
    pub persistence: f32,
    /// Standard deviation of the sensor's noise in grey levels.
    pub sensor: f32,
}

fn between(rng: &mut impl Rng, low: f32, high: f32) -> f32 {
    low + (high - low) * rng.random::<f32>()
}

/// A factor with median 1.
fn factor(rng: &mut impl Rng, sigma: f64) -> f64 {
    LogNormal::new(0.0, sigma).map_or(1.0, |d| d.sample(rng))
}

impl Scene {
    /// Draws a scene with objects of `classes` classes.
    pub fn draw(classes: u32, rng: &mut impl Rng) -> Self {
        let size = draw_size(rng);
        // Some pictures are sharp and crowded with detail, others are smooth: files from 40 to 300 kB.
        let detail = factor(rng, 0.4) as f32;
        let layers = draw_layers(size, detail, rng);
        let persistence = between(rng, 0.78, 0.95);
        let sensor = between(rng, 1.0, 4.0);
        let objects = draw_objects(size, classes, detail, rng);
        Self { size, layers, objects, persistence, sensor }
    }

    /// The label file: a row `class cx cy width height` an object, as fractions of the picture.
    pub fn label_rows(&self) -> String {
        let [w, h] = self.size.map(|v| v as f32);
        let row = |o: &Object| {
            let [x, y, ow, oh] = o.xywh;
            let (cx, cy) = ((x + 0.5 * ow) / w, (y + 0.5 * oh) / h);
            format!("{} {cx:.6} {cy:.6} {:.6} {:.6}\n", o.class, ow / w, oh / h)
        };
        self.objects.iter().map(row).collect()
    }
}

fn draw_size(rng: &mut impl Rng) -> [u32; 2] {
    let mut at = rng.random_range(0..100);
    for (size, share) in SIZES {
        if at < share {
            return size;
        }
        at -= share;
    }
    SIZES[0].0
}

fn draw_layers(size: [u32; 2], detail: f32, rng: &mut impl Rng) -> Vec<Layer> {
    let [w, h] = size.map(|v| v as f32);
    let count = rng.random_range(3..=7);
    let muted = |rng: &mut dyn Rng| {
        let grey = 40.0 + 170.0 * rng.random::<f32>();
        [(); 3].map(|()| grey + 70.0 * (rng.random::<f32>() - 0.5))
    };
    let layer = |i: usize| {
        let angle = between(rng, 0.0, std::f32::consts::TAU);
        let normal = [angle.cos(), angle.sin()];
        let through = [between(rng, 0.1, 0.9) * w, between(rng, 0.1, 0.9) * h];
        let offset = if i == 0 { f32::NEG_INFINITY } else { normal[0] * through[0] + normal[1] * through[1] };
        let wobble = between(rng, 0.0, 25.0);
        let colours = [muted(rng), muted(rng)];
        let grain = detail * between(rng, 4.0, 37.0);
        Layer { normal, offset, wobble, colours, grain }
    };
    (0..count).map(layer).collect()
}

fn draw_objects(size: [u32; 2], classes: u32, detail: f32, rng: &mut impl Rng) -> Vec<Object> {
    let [w, h] = size.map(|v| v as f32);
    let count = Poisson::new(OBJECTS).map_or(OBJECTS, |d| d.sample(rng)) as usize;
    let mut sides: Vec<[f32; 2]> = (0..count)
        .map(|_| {
            let side = SIDE.0 * factor(rng, SIDE.1);
            let aspect = factor(rng, ASPECT).sqrt();
            let bounded = |side: f64, most: f32| (side as f32).clamp(SMALLEST, LARGEST * most);
            [bounded(side * aspect, w), bounded(side / aspect, h)]
        })
        .collect();
    sides.sort_by(|a, b| (b[0] * b[1]).total_cmp(&(a[0] * a[1])));
    let mut objects: Vec<Object> = Vec::with_capacity(count);
    for [ow, oh] in sides {
        let mut place = || [rng.random::<f32>() * (w - ow), rng.random::<f32>() * (h - oh), ow, oh];
        // Where there is no room left, an object is left out rather than put over others.
        let Some(xywh) = (0..TRIES).map(|_| place()).find(|at| objects.iter().all(|o| hides(*at, o.xywh) < HIDDEN))
        else {
            continue;
        };
        let class = rng.random_range(0..classes.max(1));
        let (light, grain) = (between(rng, 0.65, 1.1), detail * between(rng, 3.0, 24.0));
        objects.push(Object { class, xywh, look: Look::of(class), light, grain });
    }
    objects
}

/// The share of box `b` that box `a` covers.
fn hides(a: [f32; 4], b: [f32; 4]) -> f32 {
    let along = |i: usize| (a[i] + a[i + 2]).min(b[i] + b[i + 2]) - a[i].max(b[i]);
    along(0).max(0.0) * along(1).max(0.0) / (b[2] * b[3])
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    fn scenes(count: usize) -> Vec<Scene> {
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        (0..count).map(|_| Scene::draw(80, &mut rng)).collect()
    }

    #[test]
    fn boxes_are_about_as_many_and_as_large_as_those_of_coco() {
        let scenes = scenes(1000);
        let areas: Vec<f32> = scenes.iter().flat_map(|s| &s.objects).map(|o| o.xywh[2] * o.xywh[3]).collect();
        let mean = areas.len() as f64 / scenes.len() as f64;
        assert!((6.0..7.5).contains(&mean), "{mean}");
        let share = |below: f32| areas.iter().filter(|&&a| a < below * below).count() as f64 / areas.len() as f64;
        assert!((0.36..0.46).contains(&share(32.0)), "{}", share(32.0));
        assert!((0.70..0.82).contains(&share(96.0)), "{}", share(96.0));
    }

    #[test]
    fn objects_lie_inside_and_no_object_hides_another() {
        for scene in scenes(200) {
            let [w, h] = scene.size.map(|v| v as f32);
            for (i, o) in scene.objects.iter().enumerate() {
                let [x, y, ow, oh] = o.xywh;
                assert!(x >= 0.0 && y >= 0.0 && x + ow <= w + 1e-3 && y + oh <= h + 1e-3 && o.class < 80, "{o:?}");
                assert!(ow >= SMALLEST && oh >= SMALLEST, "{o:?}");
                assert!(scene.objects[i + 1..].iter().all(|over| hides(over.xywh, o.xywh) < HIDDEN));
            }
        }
    }

    #[test]
    fn a_quarter_of_the_pictures_is_upright_and_the_long_side_is_640() {
        let scenes = scenes(1000);
        assert!(scenes.iter().all(|s| s.size[0].max(s.size[1]) == 640));
        let upright = scenes.iter().filter(|s| s.size[0] < s.size[1]).count();
        assert!((200..300).contains(&upright), "{upright}");
    }
}
