package confdir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// loaded returns flags after Load, of a directory with these files.
func loaded(t *testing.T, files, env map[string]string, args ...string) (*pflag.FlagSet, func(string) string) {
	t.Helper()
	dir := t.TempDir()
	for name, value := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	fs.String(FlagName, dir, "")
	fs.StringSlice(AcceptFlag, nil, "")
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	getenv := func(name string) string { return env[name] }
	if _, err := Load(fs, getenv); err != nil {
		t.Fatal(err)
	}
	return fs, getenv
}

// set is a value by which an option protects.
func set(p protection) string {
	if len(p.neutral) > 0 && p.neutral[0] == "false" {
		return "true"
	}
	return "10.0.0.0/8"
}

func TestUnprotected(t *testing.T) {
	t.Parallel()
	all := map[string]string{}
	for _, p := range protections() {
		value := set(p)
		all[p.option] = value
		wants := func(fs *pflag.FlagSet, getenv func(string) string, source string) {
			t.Helper()
			err := Unprotected(fs, getenv)
			if err == nil {
				t.Errorf("%s=%s from %s is passed over", p.option, value, source)
				return
			}
			for _, want := range []string{p.option + "=" + value, source, p.lost, p.instead, "--" + AcceptFlag} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%s: the error does not say %q: %v", p.option, want, err)
				}
			}
		}
		fs, getenv := loaded(t, map[string]string{p.option: value + "\n"}, nil)
		wants(fs, getenv, filepath.Join(fs.Lookup(FlagName).Value.String(), p.option))
		fs, getenv = loaded(t, nil, map[string]string{envName(p.option): value})
		wants(fs, getenv, envName(p.option))
		// In the environment over a file that would be neutral.
		fs, getenv = loaded(t, map[string]string{p.option: "false"}, map[string]string{envName(p.option): value})
		wants(fs, getenv, envName(p.option))

		neutral := append([]string{"", " \n"}, p.neutral...)
		for _, value := range neutral {
			fs, getenv := loaded(t, map[string]string{p.option: value, "enable-l7-proxy": "true", "mesh-auth-enabled": "true"}, nil)
			if err := Unprotected(fs, getenv); err != nil {
				t.Errorf("%s=%q, which protects nothing: %v", p.option, value, err)
			}
		}
		fs, getenv = loaded(t, map[string]string{p.option: value}, nil, "--"+AcceptFlag+"="+p.option)
		if err := Unprotected(fs, getenv); err != nil {
			t.Errorf("%s was accepted: %v", p.option, err)
		}
		// A program that has the option is asked itself.
		fs, getenv = loaded(t, map[string]string{p.option: value}, nil)
		fs.String(p.option, "", "")
		if err := Unprotected(fs, getenv); err != nil {
			t.Errorf("%s is a flag of the program: %v", p.option, err)
		}
	}
	// All are named at once, and accepting one accepts no other.
	fs, getenv := loaded(t, all, nil, "--"+AcceptFlag+"=enable-wireguard")
	err := Unprotected(fs, getenv)
	for option := range all {
		if named := err != nil && strings.Contains(err.Error(), option+"="+all[option]); named != (option != "enable-wireguard") {
			t.Errorf("%s is named: %v", option, named)
		}
	}
	fs, getenv = loaded(t, map[string]string{AcceptFlag: "enable-wireguard encrypt-node", "enable-wireguard": "true", "encrypt-node": "true"}, nil)
	if err := Unprotected(fs, getenv); err != nil {
		t.Errorf("accepted in the directory: %v", err)
	}
	fs, getenv = loaded(t, nil, nil, "--"+AcceptFlag+"=enable-wiregaurd")
	if err := Unprotected(fs, getenv); err == nil || !strings.Contains(err.Error(), "enable-wiregaurd") {
		t.Errorf("a name that is none: %v", err)
	}
}

// Who comes from elsewhere finds every such option, and what to do, in one table.
func TestProtectionsAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "user", "migrate-from-cilium.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range protections() {
		if !strings.Contains(string(text), "`"+p.option+"`") {
			t.Errorf("docs/user/migrate-from-cilium.md does not name %s", p.option)
		}
	}
}
