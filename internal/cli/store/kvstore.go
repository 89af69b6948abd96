// Package store holds the commands that talk to the key-value store themselves, without an agent,
// and what other commands need for that.
package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/cli/output"
	"github.com/hawser-net/hawser/internal/exitcode"
	"github.com/hawser-net/hawser/internal/storedial"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// Opener connects to a store of a kind with options. The caller closes the backend.
type Opener func(ctx context.Context, driver string, options map[string]string) (kvstore.Backend, error)

// Flags select the key-value store.
type Flags struct {
	driver  string
	options map[string]string
	timeout time.Duration
}

// Command reads and writes the store; a nil open connects by the drivers that Hawser has.
func Command(open Opener) *cobra.Command {
	f := &Flags{}
	c := command.Group("kvstore", "Read and write the key-value store directly", `Read and write the key-value store directly, without the agent. The store and how to
reach it are given by --kvstore and --kvstore-opt, as for the agent.

What you write here affects every node of the cluster.`,
		getCommand(open, f), setCommand(open, f), deleteCommand(open, f), watchCommand(open, f))
	c.Example = `  hawser kvstore get --recursive cilium/state/identities/v1/id --kvstore-opt etcd.address=http://127.0.0.1:2379`
	f.Add(c.PersistentFlags())
	return c
}

// Add adds the flags to those of a command.
func (f *Flags) Add(fs *pflag.FlagSet) {
	fs.StringVar(&f.driver, "kvstore", "etcd", "`kind` of the store: "+strings.Join(storedial.Kinds(), " or "))
	storedial.OptionsVar(fs, &f.options, "kvstore-opt", "`option=value` of the store, as etcd.address, etcd.config or consul.address")
	fs.DurationVar(&f.timeout, "timeout", 10*time.Second, "give up after this `time`; a watch has no limit once it has begun")
}

// openStore is the opener of commands that are given none.
func openStore(ctx context.Context, driver string, options map[string]string) (kvstore.Backend, error) {
	cfg := storedial.Defaults()
	cfg.Kind, cfg.Options = driver, options
	if err := cfg.Validate(); err != nil {
		return nil, exitcode.With(exitcode.Usage, err)
	}
	return storedial.Open(ctx, cfg, slog.New(slog.DiscardHandler))
}

// withStore runs a command with a connection to the store. The context of run has the time limit;
// that of cmd has not.
func withStore(open Opener, f *Flags, run func(ctx context.Context, cmd *cobra.Command, store kvstore.Backend, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) (err error) {
		if open == nil {
			open = openStore
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
		defer cancel()
		store, err := open(ctx, f.driver, f.options)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, store.Close()) }()
		err = run(ctx, cmd, store, args)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
			msg := fmt.Sprintf("%s did not answer within %s", f.driver, f.timeout)
			if st := store.Status(); st.Message != "" {
				msg += ": " + st.Message
			}
			return exitcode.With(exitcode.Unreachable, fmt.Errorf("%s; check --kvstore-opt", msg))
		}
		return err
	}
}

// storePair is a key as it is shown. A value that is not text is shown in base64.
type storePair struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Binary []byte `json:"value-base64,omitempty"`
	Lease  string `json:"lease,omitempty"`
}

func showPair(kv kvstore.KeyValue) storePair {
	p := storePair{Key: kv.Key, Lease: kv.Lease}
	if utf8.Valid(kv.Value) {
		p.Value = string(kv.Value)
	} else {
		p.Binary = kv.Value
	}
	return p
}

func (p storePair) text() string {
	value := output.Printable(p.Value)
	if p.Binary != nil {
		value = fmt.Sprintf("%d bytes that are not text (see -o json)", len(p.Binary))
	}
	return output.Printable(p.Key) + " => " + value
}

func getCommand(open Opener, f *Flags) *cobra.Command {
	var recursive bool
	c := &cobra.Command{
		Use:   "get KEY",
		Short: "Show a key, or all keys under a prefix",
		Example: `  hawser kvstore get cilium/.heartbeat
  hawser kvstore get --recursive cilium/state/nodes/v1`,
		Args: cobra.ExactArgs(1),
	}
	c.Flags().BoolVarP(&recursive, "recursive", "r", false, "all keys that start with KEY")
	out := output.AddFlag(c)
	c.RunE = withStore(open, f, func(ctx context.Context, cmd *cobra.Command, store kvstore.Backend, args []string) error {
		if !recursive {
			kv, err := store.Get(ctx, args[0])
			if err != nil {
				return err
			}
			p := showPair(kv)
			return out.Print(cmd.OutOrStdout(), p, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, p.text())
				return err
			})
		}
		listing, err := store.List(ctx, args[0])
		if err != nil {
			return err
		}
		pairs := make([]storePair, len(listing.Pairs))
		for i, kv := range listing.Pairs {
			pairs[i] = showPair(kv)
		}
		return out.Print(cmd.OutOrStdout(), pairs, func(w io.Writer) error {
			for _, p := range pairs {
				if _, err := fmt.Fprintln(w, p.text()); err != nil {
					return err
				}
			}
			return nil
		})
	})
	return c
}

func setCommand(open Opener, f *Flags) *cobra.Command {
	var value string
	c := &cobra.Command{
		Use:     "set KEY [VALUE]",
		Short:   "Write a key, without a lease",
		Example: "  hawser kvstore set example/key value",
		Args:    cobra.RangeArgs(1, 2),
	}
	c.Flags().StringVar(&value, "value", "", "the `value`, instead of as an argument")
	c.RunE = withStore(open, f, func(ctx context.Context, cmd *cobra.Command, store kvstore.Backend, args []string) error {
		if (len(args) == 2) == cmd.Flags().Changed("value") {
			return exitcode.Usagef("give the value either as an argument or by --value")
		}
		if len(args) == 2 {
			value = args[1]
		}
		return kvstore.Put(ctx, store, args[0], []byte(value), kvstore.Permanent)
	})
	return c
}

func deleteCommand(open Opener, f *Flags) *cobra.Command {
	var recursive bool
	c := &cobra.Command{
		Use:     "delete KEY",
		Short:   "Delete a key, or all keys under a prefix",
		Long:    "Delete a key, or all keys under a prefix. It is no error if there is none.",
		Example: "  hawser kvstore delete --recursive example/",
		Args:    cobra.ExactArgs(1),
	}
	c.Flags().BoolVarP(&recursive, "recursive", "r", false, "all keys that start with KEY")
	c.RunE = withStore(open, f, func(ctx context.Context, _ *cobra.Command, store kvstore.Backend, args []string) error {
		if args[0] == "" {
			return exitcode.Usagef("the key is empty, which would mean the whole store")
		}
		if recursive {
			return kvstore.DeletePrefix(ctx, store, args[0])
		}
		return kvstore.Delete(ctx, store, args[0])
	})
	return c
}

func watchCommand(open Opener, f *Flags) *cobra.Command {
	var recursive bool
	c := &cobra.Command{
		Use:   "watch KEY",
		Short: "Show a key, or all keys under a prefix, and every change, until interrupted",
		Long: `Show a key, or all keys under a prefix, and every change, until interrupted. The
line "synced" divides what was there from what changes.`,
		Example: "  hawser kvstore watch --recursive cilium/state/ip/v1",
		Args:    cobra.ExactArgs(1),
	}
	c.Flags().BoolVarP(&recursive, "recursive", "r", false, "all keys that start with KEY")
	out := output.AddFlag(c)
	c.RunE = withStore(open, f, func(ctx context.Context, cmd *cobra.Command, store kvstore.Backend, args []string) error {
		// A watch is silent while the store cannot be reached, so ask once first, within the limit.
		if _, err := store.Get(ctx, args[0]); err != nil && !errors.Is(err, kvstore.ErrNotFound) {
			return err
		}
		ctx, cancel := context.WithCancel(cmd.Context())
		defer cancel()
		for ev := range store.Watch(ctx, args[0]) {
			if !recursive && ev.Kind != kvstore.EventListDone && ev.Key != args[0] {
				continue
			}
			if err := writeStoreEvent(cmd.OutOrStdout(), ev, out); err != nil {
				return err
			}
		}
		return nil
	})
	return c
}

func writeStoreEvent(w io.Writer, ev kvstore.Event, out *output.Format) error {
	shown := struct {
		Event string `json:"event"`
		storePair
	}{storeEventName(ev.Kind), showPair(ev.KeyValue)}
	return out.PrintNext(w, shown, func(w io.Writer) error {
		var err error
		switch ev.Kind {
		case kvstore.EventListDone:
			_, err = fmt.Fprintln(w, shown.Event)
		case kvstore.EventDelete:
			_, err = fmt.Fprintln(w, shown.Event, output.Printable(ev.Key))
		default:
			_, err = fmt.Fprintln(w, shown.Event, shown.text())
		}
		return err
	})
}

func storeEventName(k kvstore.EventKind) string {
	switch k {
	case kvstore.EventCreate:
		return "create"
	case kvstore.EventModify:
		return "modify"
	case kvstore.EventDelete:
		return "delete"
	}
	return "synced"
}
