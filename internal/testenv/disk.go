package testenv

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// SmallDisk is a file system of 256 KiB in memory.
type SmallDisk struct {
	// Path is where it is mounted.
	Path string
	t    testing.TB
}

// NewSmallDisk mounts one until the test ends.
func NewSmallDisk(t testing.TB) *SmallDisk {
	t.Helper()
	RequireRoot(t)
	d := &SmallDisk{Path: t.TempDir(), t: t}
	if err := unix.Mount("tmpfs", d.Path, "tmpfs", 0, "size=256k"); err != nil {
		t.Fatalf("mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(d.Path, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", d.Path, err)
		}
	})
	return d
}

// filling is what takes up the room.
func (d *SmallDisk) filling() string { return filepath.Join(d.Path, "filling") }

// Fill takes up all room that is left: from now on nothing can be written.
func (d *SmallDisk) Fill() {
	d.t.Helper()
	f, err := os.Create(d.filling())
	if err != nil {
		d.t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) {
		d.t.Fatalf("fill %s: %v", d.Path, err)
	}
}

// Free undoes Fill.
func (d *SmallDisk) Free() {
	d.t.Helper()
	if err := os.Remove(d.filling()); err != nil {
		d.t.Fatal(err)
	}
}

// ReadOnly has the file system refuse every change; no file of it may be open for writing.
func (d *SmallDisk) ReadOnly() { d.remount(unix.MS_RDONLY) }

// Writable undoes ReadOnly.
func (d *SmallDisk) Writable() { d.remount(0) }

func (d *SmallDisk) remount(flags uintptr) {
	d.t.Helper()
	if err := unix.Mount("", d.Path, "", unix.MS_REMOUNT|flags, ""); err != nil {
		d.t.Fatalf("mount %s anew: %v", d.Path, err)
	}
}
