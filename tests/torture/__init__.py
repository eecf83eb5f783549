"""Torture of the archive: kills, power losses and failing disks, with checks that nothing acknowledged is ever lost."""
