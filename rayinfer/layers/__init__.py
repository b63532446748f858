"""The layers of decoders and encoders."""
