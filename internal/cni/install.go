package cni

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// PluginName is the file name of the plugin.
const PluginName = "hawser-cni"

// Install copies the program in the file source into dir, which is where the container runtime
// looks for plugins, under [PluginName]. It may be called while the runtime starts plugins: at
// every moment there is a whole program, the old or the new one. What an interrupted call left is
// removed.
func Install(source, dir string) error {
	in, err := os.Open(source)
	if err != nil {
		return fmt.Errorf("install the plugin: %w", err)
	}
	defer in.Close()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("install the plugin: %w", err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "."+PluginName+"-*"))
	if err != nil {
		return fmt.Errorf("install the plugin: %w", err)
	}
	for _, path := range left {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("install the plugin: remove what an earlier attempt left: %w", err)
		}
	}
	tmp, err := os.CreateTemp(dir, "."+PluginName+"-*")
	if err != nil {
		return fmt.Errorf("install the plugin: %w", err)
	}
	_, err = io.Copy(tmp, in)
	if err == nil {
		err = tmp.Chmod(0o755)
	}
	if err == nil {
		// A node that loses power must not come back with an empty program.
		err = tmp.Sync()
	}
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), filepath.Join(dir, PluginName))
	}
	if err != nil {
		os.Remove(tmp.Name())
		return fmt.Errorf("install the plugin in %s: %w", dir, err)
	}
	return nil
}
