package migration

import (
	"context"
	"fmt"
	"time"

	"github.com/hawser-net/hawser/pkg/retry"
)

// Options select what to do.
type Options struct {
	// Write has what is missing written; without it, places are only compared.
	Write bool
	// Progress, if not nil, gets how many of how many were checked, from the caller's
	// goroutine.
	Progress func(done, total int)
}

// Report is what came of it.
type Report struct {
	// Total counts the identities of this cluster where they are copied from.
	Total int `json:"total"`
	// Same were there before, Copied were written, Missing are not there yet.
	Same    int `json:"same"`
	Copied  int `json:"copied"`
	Missing int `json:"missing"`
	// Extra are only where they are copied to.
	Extra int `json:"extra"`
	// Quarantined are IDs that are in quarantine where they are copied from, Free those of them
	// that are free in the other place yet.
	Quarantined int        `json:"quarantined"`
	Free        int        `json:"free"`
	Conflicts   []Conflict `json:"conflicts"`
	// Faulty are names and keys, in the place that is copied from, that are no identities.
	Faulty []string `json:"faulty"`
	// Foreign identities have IDs of other clusters, and are left alone.
	Foreign int `json:"foreign"`
	// Complete means that every identity is in both places, under its ID, and every ID in
	// quarantine is free in neither.
	Complete bool `json:"complete"`
}

// sibling is the pause before a second ID of the same labels: the oldest counts, and objects
// know their age in seconds.
const sibling = 1100 * time.Millisecond

// ToObjects copies from the store to objects, or compares.
func ToObjects(ctx context.Context, from Keys, to Objects, opts Options) (Report, error) {
	return run(ctx, from, to, opts)
}

// ToKeys copies from objects to the store, or compares.
func ToKeys(ctx context.Context, from Objects, to Keys, opts Options) (Report, error) {
	return run(ctx, from, to, opts)
}

func run(ctx context.Context, from, to place, opts Options) (Report, error) {
	r, missing, free, err := look(ctx, from, to)
	if err != nil || !opts.Write {
		return r, err
	}
	for _, q := range free {
		if err := to.quarantine(ctx, q); err != nil {
			return r, err
		}
	}
	report := func(done int) {
		if opts.Progress != nil {
			opts.Progress(r.Same+done, r.Total)
		}
	}
	written := map[string]bool{}
	var late []Identity
	var conflicts []Conflict
	done := 0
	write := func(i Identity) error {
		c, err := to.write(ctx, i)
		if err != nil {
			return fmt.Errorf("%w; %d of %d were copied, and running it again goes on", err, done, len(missing))
		}
		if c != nil {
			conflicts = append(conflicts, *c)
			return nil
		}
		done++
		report(done)
		return nil
	}
	for _, i := range missing {
		if written[i.Labels] { // another ID of the same labels: the older one comes first
			late = append(late, i)
			continue
		}
		written[i.Labels] = true
		if err := write(i); err != nil {
			return r, err
		}
	}
	for _, i := range late {
		if !retry.Sleep(ctx, sibling) {
			return r, ctx.Err()
		}
		if err := write(i); err != nil {
			return r, err
		}
	}
	// What counts is what is there now.
	after, _, _, err := look(ctx, from, to)
	after.Copied = done
	after.Same = max(0, after.Same-done)
	for _, c := range conflicts {
		known := false
		for _, o := range after.Conflicts {
			known = known || o.ID == c.ID
		}
		if !known {
			after.Conflicts = append(after.Conflicts, c)
			after.Complete = false
		}
	}
	return after, err
}

// look compares two places.
func look(ctx context.Context, from, to place) (r Report, missing []Identity, free []Quarantined, err error) {
	source, err := from.read(ctx)
	if err != nil {
		return r, nil, nil, err
	}
	target, err := to.read(ctx)
	if err != nil {
		return r, nil, nil, err
	}
	d := Compare(source.Identities, target.Identities)
	free, conflicts := CompareQuarantined(source.Quarantined, target)
	d.Conflicts = append(d.Conflicts, conflicts...)
	r = Report{
		Quarantined: len(source.Quarantined), Free: len(free),
		Total: len(source.Identities), Same: d.Same, Missing: len(d.Missing), Extra: len(d.Extra), Conflicts: d.Conflicts, Faulty: source.Faulty, Foreign: source.Foreign,
		Complete: len(d.Missing) == 0 && len(d.Conflicts) == 0 && len(free) == 0,
	}
	if r.Conflicts == nil {
		r.Conflicts = []Conflict{}
	}
	if r.Faulty == nil {
		r.Faulty = []string{}
	}
	return r, d.Missing, free, nil
}
