package storedial_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/storedial"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

func TestOptions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args []string
		want map[string]string
		err  string
	}{
		{[]string{"--o=etcd.address=http://a:1,http://b:2,etcd.qps=5"}, map[string]string{"etcd.address": "http://a:1,http://b:2", "etcd.qps": "5"}, ""},
		{[]string{"--o", "etcd.qps=5", "--o", "etcd.limit=6, etcd.qps=7"}, map[string]string{"etcd.limit": "6", "etcd.qps": "7"}, ""},
		{[]string{`--o={"etcd.config": "/a,b", "etcd.qps": "100"}`}, map[string]string{"etcd.config": "/a,b", "etcd.qps": "100"}, ""},
		{[]string{"--o=etcd.address=unix:///a=b"}, map[string]string{"etcd.address": "unix:///a=b"}, ""},
		{[]string{"--o="}, map[string]string{}, ""},
		{[]string{"--o=nonsense"}, nil, "not of the form"},
		{[]string{"--o={1}"}, nil, "JSON"},
	} {
		got := map[string]string{}
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		storedial.OptionsVar(fs, &got, "o", "options")
		err := fs.Parse(tt.args)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%q: error %v, want one with %q", tt.args, err, tt.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", tt.args, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.args, diff)
		}
		// What the flag shows can be given again.
		again := map[string]string{}
		fs2 := pflag.NewFlagSet("test", pflag.ContinueOnError)
		storedial.OptionsVar(fs2, &again, "o", "options")
		if err := fs2.Set("o", fs.Lookup("o").Value.String()); err != nil || cmp.Diff(got, again) != "" {
			t.Errorf("%q shown as %q, read as %v (%v)", tt.args, fs.Lookup("o").Value, again, err)
		}
	}
}

func FuzzOptions(f *testing.F) {
	f.Add("etcd.address=http://a:1,http://b:2")
	f.Add(`{"etcd.config": "x"}`)
	f.Fuzz(func(_ *testing.T, text string) {
		m := map[string]string{}
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		storedial.OptionsVar(fs, &m, "o", "options")
		_ = fs.Set("o", text)
	})
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*storedial.Config)
		err    string
	}{
		"none":                {func(*storedial.Config) {}, ""},
		"options for nothing": {func(c *storedial.Config) { c.Options["etcd.qps"] = "1" }, "no effect"},
		"unknown":             {func(c *storedial.Config) { c.Kind = "zoo" }, `"zoo"`},
		"no address":          {func(c *storedial.Config) { c.Kind = "etcd" }, "etcd.address"},
		"etcd":                {func(c *storedial.Config) { c.Kind, c.Options["etcd.address"] = "etcd", "http://a:1" }, ""},
		"consul":              {func(c *storedial.Config) { c.Kind, c.Options["consul.address"] = "consul", "a:8500" }, ""},
		"consul no address":   {func(c *storedial.Config) { c.Kind = "consul" }, "consul.address"},
		"options of another": {func(c *storedial.Config) {
			c.Kind, c.Options["consul.address"], c.Options["etcd.qps"] = "consul", "a:8500", "1"
		}, `"etcd.qps"`},
		"unknown option": {func(c *storedial.Config) {
			c.Kind, c.Options["etcd.address"], c.Options["etcd.adress"] = "etcd", "http://a:1", ""
		}, `"etcd.adress"`},
		"short lease": {func(c *storedial.Config) {
			c.Kind, c.Options["etcd.address"], c.LeaseTTL = "etcd", "http://a:1", time.Second
		}, "lease TTL"},
	} {
		c := storedial.Defaults()
		tt.change(&c)
		err := c.Validate()
		if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("%s: %v, want %q", name, err, tt.err)
		}
	}
}

func TestOpenDoesNotWait(t *testing.T) {
	t.Parallel()
	c := storedial.Defaults()
	c.Kind, c.Options = "etcd", map[string]string{"etcd.address": "unix:///nowhere/etcd.sock"}
	if b, err := storedial.Open(context.Background(), storedial.Config{Kind: "consul", Options: map[string]string{"consul.address": "127.0.0.1:1"}, LeaseTTL: time.Hour}, nil); err != nil {
		t.Error(err)
	} else if st := b.Status(); st.Kind != "consul" || st.State == kvstore.StateOK || b.Close() != nil {
		t.Errorf("status %+v", st)
	}
	b, err := storedial.Open(context.Background(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	if st := b.Status(); st.Kind != "etcd" || st.State == kvstore.StateOK {
		t.Errorf("status %+v", st)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	c.Kind = "zoo"
	if _, err := storedial.Open(context.Background(), c, nil); err == nil {
		t.Error("opened a store of an unknown kind")
	}
}
