//! Networks that classify images and videos.

use serde::Deserialize;

use super::{Architectures, one_to_one, parse};
use crate::models::{DenseNet, DenseNetConfig, InceptionConfig, InceptionV3, R3d, R3dConfig, ResNet, ResNetConfig};

/// Options that override the named architecture's values.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Residual {
    channels: Option<usize>,
    classes: Option<usize>,
    width: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Dense {
    channels: Option<usize>,
    classes: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Inception {
    classes: Option<usize>,
}

pub(super) fn register(architectures: &mut Architectures) {
    for (name, base) in [
        ("resnet18", ResNetConfig::RESNET18),
        ("resnet34", ResNetConfig::RESNET34),
        ("resnet50", ResNetConfig::RESNET50),
        ("resnet101", ResNetConfig::RESNET101),
        ("resnet152", ResNetConfig::RESNET152),
    ] {
        architectures.register(name, move |scope, options| {
            let options: Residual = parse(options)?;
            let config = ResNetConfig {
                channels: options.channels.unwrap_or(base.channels),
                classes: options.classes.unwrap_or(base.classes),
                width: options.width.unwrap_or(base.width),
                ..base
            };
            Ok(one_to_one(ResNet::new(scope, config)?))
        });
    }
    for (name, base) in [("densenet121", DenseNetConfig::DENSENET121), ("densenet201", DenseNetConfig::DENSENET201)] {
        architectures.register(name, move |scope, options| {
            let options: Dense = parse(options)?;
            let channels = options.channels.unwrap_or(base.channels);
            let classes = options.classes.unwrap_or(base.classes);
            Ok(one_to_one(DenseNet::new(scope, DenseNetConfig { channels, classes, ..base })?))
        });
    }
    architectures.register("inception_v3", |scope, options| {
        let Inception { classes } = parse(options)?;
        let base = InceptionConfig::V3;
        // The auxiliary classifier is for training only.
        let config = InceptionConfig { classes: classes.unwrap_or(base.classes), has_auxiliary: false, ..base };
        Ok(one_to_one(InceptionV3::new(scope, config)?))
    });
    architectures.register("r3d18", |scope, options| {
        let (options, base): (Residual, _) = (parse(options)?, R3dConfig::R3D18);
        let config = R3dConfig {
            channels: options.channels.unwrap_or(base.channels),
            classes: options.classes.unwrap_or(base.classes),
            width: options.width.unwrap_or(base.width),
            ..base
        };
        Ok(one_to_one(R3d::new(scope, config)?))
    });
}
