// Package confdir completes the flags of a program from its environment and from a directory with
// one file per option, as a mounted ConfigMap is. All programs of the product that have options
// read them here, so one ConfigMap serves them all.
//
// It starts no goroutines and keeps nothing.
package confdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/pflag"
)

// EnvPrefix starts the name of every environment variable that sets an option: the option
// --cluster-name is CILIUM_CLUSTER_NAME.
const EnvPrefix = "CILIUM_"

// FlagName is the option that names the directory.
const FlagName = "config-dir"

// maxOptionFile bounds a file of the directory; options are short.
const maxOptionFile = 1 << 20

// envName returns the environment variable of an option.
func envName(option string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(option, "-", "_"))
}

// Load completes the flags of fs that the command line did not set, first from the environment,
// then from the files of the directory that the option [FlagName] names, by the command line or the
// environment. A file is named like its option. Load returns the names of files that no flag has,
// which is not an error because other programs read the same directory. All faults are joined, each
// naming where the bad value came from.
//
// An empty value counts as not set: ConfigMaps that exist have many, also of options that cannot be
// empty here. An option that means something when it is empty therefore has a word for that, too.
//
// ConfigMaps that exist separate the items of lists by blanks, where the command line has commas,
// and those of older versions have some durations as a number of seconds. Both are taken here: a
// list that is read as one item would select nothing, without a word.
func Load(fs *pflag.FlagSet, getenv func(string) string) (unknown []string, err error) {
	dir := ""
	if f := fs.Lookup(FlagName); f != nil {
		dir = f.Value.String()
		if d := getenv(envName(FlagName)); d != "" && !f.Changed {
			dir = d
		}
	}
	files, unknown, errs := read(fs, dir)
	set := func(f *pflag.Flag, value, source string) {
		if err := fs.Set(f.Name, normal(f, value)); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", source, err))
		}
	}
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			return
		}
		name := envName(f.Name)
		if value := getenv(name); value != "" {
			set(f, value, "environment variable "+name)
		} else if value, ok := files[f.Name]; ok && value != "" {
			set(f, value, filepath.Join(dir, f.Name))
		}
	})
	return unknown, errors.Join(errs...)
}

// normal returns a value in the form in which the command line has it.
func normal(f *pflag.Flag, value string) string {
	switch f.Value.Type() {
	case "stringSlice":
		items := strings.FieldsFunc(value, func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
		return strings.Join(items, ",")
	case "duration":
		if _, err := strconv.ParseUint(value, 10, 31); err == nil {
			return value + "s"
		}
	}
	return value
}

// read returns the files of dir that are options of fs, with their content, and the names of the
// others.
func read(fs *pflag.FlagSet, dir string) (files map[string]string, unknown []string, errs []error) {
	files = map[string]string{}
	if dir == "" {
		return files, nil, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return files, nil, []error{fmt.Errorf("--%s: %w", FlagName, err)}
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
		if fs.Lookup(e.Name()) == nil {
			unknown = append(unknown, e.Name())
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
		files[e.Name()] = strings.TrimSpace(string(data))
	}
	return files, unknown, errs
}
