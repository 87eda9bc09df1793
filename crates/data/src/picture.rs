//! A decoded picture in memory.

/// RGB, 8 bit, row-major: `data[(y * width + x) * 3 + channel]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Pixels in a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// `height * width * 3` bytes.
    pub data: Vec<u8>,
}

impl Picture {
    /// A picture of one grey level.
    pub fn filled(width: u32, height: u32, level: u8) -> Self {
        Self { width, height, data: vec![level; width as usize * height as usize * 3] }
    }

    /// Takes over `data`; `None` if its length is not `width * height * 3`.
    pub fn from_data(width: u32, height: u32, data: Vec<u8>) -> Option<Self> {
        (data.len() == width as usize * height as usize * 3).then_some(Self { width, height, data })
    }

    /// One row of `width * 3` bytes.
    pub fn row(&self, y: usize) -> &[u8] {
        let pitch = self.width as usize * 3;
        &self.data[y * pitch..(y + 1) * pitch]
    }

    /// Red, green and blue at a place inside the picture.
    pub fn at(&self, x: usize, y: usize) -> [u8; 3] {
        let i = (y * self.width as usize + x) * 3;
        [self.data[i], self.data[i + 1], self.data[i + 2]]
    }
}
