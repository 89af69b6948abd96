package observe

import (
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-net/hawser/internal/exitcode"
)

// lastFlows is how many flows are shown by default.
const lastFlows = 20

// window is which part of what there is a command of observe shows.
type window struct {
	follow, all  bool
	first, last  uint64
	since, until string
}

func (r *window) flags(c *cobra.Command, what string) {
	fs := c.Flags()
	fs.BoolVarP(&r.follow, "follow", "f", false, "go on with the "+what+" to come, until interrupted")
	fs.Uint64Var(&r.last, "last", 0, "the latest `n` "+what)
	fs.Uint64Var(&r.first, "first", 0, "the oldest `n` "+what+" that are kept")
	fs.BoolVar(&r.all, "all", false, "all "+what+" that are kept")
	fs.StringVar(&r.since, "since", "", "nothing before this `time`: RFC 3339, or so long ago as in 10m")
	fs.StringVar(&r.until, "until", "", "nothing after this `time`")
	c.MarkFlagsMutuallyExclusive("last", "first", "all")
	c.MarkFlagsMutuallyExclusive("first", "follow")
}

// asked is a range as requests have it.
type asked struct {
	number       uint64
	first        bool
	since, until *timestamppb.Timestamp
}

func (r *window) asked(now time.Time) (q asked, err error) {
	if q.number = r.last; r.first > 0 {
		q.number, q.first = r.first, true
	}
	if q.since, err = ParseWhen("since", r.since, now); err != nil {
		return q, err
	}
	if q.until, err = ParseWhen("until", r.until, now); err != nil {
		return q, err
	}
	switch {
	case q.number > 0 || q.since != nil:
	case r.all && r.follow:
		q.since = beginning()
	case !r.all && !r.follow:
		q.number = lastFlows
	}
	return q, nil
}

// ParseWhen reads a time, or how long ago it was; nil if there is none.
func ParseWhen(flag, text string, now time.Time) (*timestamppb.Timestamp, error) {
	if text == "" {
		return nil, nil
	}
	if ago, err := time.ParseDuration(text); err == nil {
		return timestamppb.New(now.Add(-ago)), nil
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return nil, exitcode.Usagef("--%s: %q is neither a time such as 2026-03-01T12:00:00Z nor a duration such as 10m", flag, text)
	}
	return timestamppb.New(t), nil
}

// beginning is before every flow.
func beginning() *timestamppb.Timestamp { return timestamppb.New(time.Unix(0, 0)) }
