package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
)

// envPrefix starts the name of every environment variable that sets an option: the option
// --cluster-name is CILIUM_CLUSTER_NAME.
const envPrefix = "CILIUM_"

// maxOptionFile bounds a file of --config-dir; options are short.
const maxOptionFile = 1 << 20

// Load completes the flags of fs that the command line did not set, first from the environment,
// then from the files of dir (one per option, named like the flag, as a mounted ConfigMap). It
// returns the names of files that no flag has, which is not an error because one ConfigMap
// serves several programs. All faults are joined, each naming where the bad value came from.
func Load(fs *pflag.FlagSet, getenv func(string) string, dir string) (unknown []string, err error) {
	var errs []error
	set := func(f *pflag.Flag, value, source string) {
		if err := fs.Set(f.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", source, err))
		}
	}
	files := map[string]string{}
	if dir != "" {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, fmt.Errorf("--config-dir: %w", err)
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ".") {
				continue // a ConfigMap volume's own links
			}
			path := filepath.Join(dir, e.Name())
			info, err := os.Stat(path)
			if err != nil || info.IsDir() {
				continue
			}
			if info.Size() > maxOptionFile {
				errs = append(errs, fmt.Errorf("%s: larger than %d bytes", path, maxOptionFile))
				continue
			}
			data, err := os.ReadFile(path)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			if fs.Lookup(e.Name()) == nil {
				unknown = append(unknown, e.Name())
				continue
			}
			files[e.Name()] = strings.TrimSpace(string(data))
		}
	}
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			return
		}
		name := envPrefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if value := getenv(name); value != "" {
			set(f, value, "environment variable "+name)
		} else if value, ok := files[f.Name]; ok && value != "" {
			set(f, value, filepath.Join(dir, f.Name))
		}
	})
	return unknown, errors.Join(errs...)
}
