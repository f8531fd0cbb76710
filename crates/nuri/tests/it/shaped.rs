//! Values of any type that travels, from random numbers: serde asks for each part of the type in
//! turn. So a call has the right shape whatever it says, also one that is added tomorrow.

use std::fmt;

use nuri_io::rng::Rng;
use serde::de::value::U32Deserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess,
    SeqAccess, VariantAccess, Visitor,
};

/// A random value, or none where the type refuses what came up.
pub fn random<T: DeserializeOwned>(rng: &mut Rng) -> Option<T> {
    T::deserialize(&mut Shaped(rng)).ok()
}

/// Numbers at which arithmetic and bounds fail, numbers that name something, and others.
fn number(rng: &mut Rng) -> u64 {
    match rng.below(8) {
        0..4 => rng.below(12),
        4 => 1 << rng.below(64),
        5 => (1u64 << rng.below(64)).wrapping_sub(1 + rng.below(2)),
        6 => u64::MAX - rng.below(3),
        _ => rng.next(),
    }
}

fn length(rng: &mut Rng) -> usize {
    match rng.below(20) {
        0 => rng.below(3000) as usize,
        1 => 0,
        _ => 1 + rng.below(4) as usize,
    }
}

fn words(rng: &mut Rng) -> String {
    const WORDS: [&str; 12] = [
        "a",
        "b",
        "user.x",
        "..",
        ".",
        "/",
        "",
        "\u{1b}[31m",
        "127.0.0.1:1",
        "10.0.0.1:99999",
        "ä",
        "system.posix_acl_access",
    ];
    let word = WORDS[rng.below(WORDS.len() as u64) as usize];
    if rng.one_in(30) { word.repeat(length(rng)) } else { word.to_string() }
}

struct Shaped<'r>(&'r mut Rng);

/// The type refuses what came up.
#[derive(Debug)]
struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the type refuses this value")
    }
}

impl std::error::Error for Refused {}

impl serde::de::Error for Refused {
    fn custom<T: fmt::Display>(_: T) -> Refused {
        Refused
    }
}

macro_rules! numbers {
    ($($ask:ident $answer:ident $kind:ty;)*) => {$(
        fn $ask<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
            visitor.$answer(number(self.0) as $kind)
        }
    )*};
}

impl<'de> Deserializer<'de> for &mut Shaped<'_> {
    type Error = Refused;

    numbers! {
        deserialize_u8 visit_u8 u8;
        deserialize_u16 visit_u16 u16;
        deserialize_u32 visit_u32 u32;
        deserialize_u64 visit_u64 u64;
        deserialize_u128 visit_u128 u128;
        deserialize_i8 visit_i8 i8;
        deserialize_i16 visit_i16 i16;
        deserialize_i32 visit_i32 i32;
        deserialize_i64 visit_i64 i64;
        deserialize_f32 visit_f32 f32;
        deserialize_f64 visit_f64 f64;
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_bool(self.0.one_in(2))
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_char(char::from(self.0.next() as u8))
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_string(words(self.0))
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_string(words(self.0))
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_byte_buf(words(self.0).into_bytes())
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_byte_buf(words(self.0).into_bytes())
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        if self.0.one_in(3) { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        let left = length(self.0);
        visitor.visit_seq(Parts { of: self, left })
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        left: usize,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        visitor.visit_seq(Parts { of: self, left })
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        left: usize,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        visitor.visit_seq(Parts { of: self, left })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        let left = length(self.0);
        visitor.visit_map(Parts { of: self, left })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        visitor.visit_seq(Parts { of: self, left: fields.len() })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        let variant = self.0.below(variants.len() as u64) as u32;
        visitor.visit_enum(Variant { of: self, variant })
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Refused> {
        Err(Refused)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Refused> {
        Err(Refused)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Refused> {
        Err(Refused)
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// Parts of a list, a map or a structure.
struct Parts<'s, 'r> {
    of: &'s mut Shaped<'r>,
    left: usize,
}

impl<'de> SeqAccess<'de> for Parts<'_, '_> {
    type Error = Refused;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Refused> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        seed.deserialize(&mut *self.of).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

impl<'de> MapAccess<'de> for Parts<'_, '_> {
    type Error = Refused;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Refused> {
        self.next_element_seed(seed)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Refused> {
        seed.deserialize(&mut *self.of)
    }
}

struct Variant<'s, 'r> {
    of: &'s mut Shaped<'r>,
    variant: u32,
}

impl<'de> EnumAccess<'de> for Variant<'_, '_> {
    type Error = Refused;
    type Variant = Self;

    fn variant_seed<T: DeserializeSeed<'de>>(
        self,
        seed: T,
    ) -> Result<(T::Value, Self::Variant), Refused> {
        let named: U32Deserializer<Refused> = self.variant.into_deserializer();
        Ok((seed.deserialize(named)?, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_, '_> {
    type Error = Refused;

    fn unit_variant(self) -> Result<(), Refused> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Refused> {
        seed.deserialize(self.of)
    }

    fn tuple_variant<V: Visitor<'de>>(self, left: usize, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_seq(Parts { of: self.of, left })
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        visitor.visit_seq(Parts { of: self.of, left: fields.len() })
    }
}
