"""The trusted child: runs references, draws secret inputs, judges outputs."""
