package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/hawser-net/hawser/api/rest/server"
)

// keepPrograms has the programs of restored endpoints stay in charge if they work on other maps
// than this agent's: those of another layout, or maps whose pins were removed. They know the rules,
// identities and addresses that were in force; the new maps know nothing until everything has been
// heard. What is to be judged by the new maps before that is locked there (see endpoint.Policy).
func (a *api) keepPrograms(log *slog.Logger) error {
	var pods []int
	for _, row := range a.registry.List() {
		pods = append(pods, row.IfIndex)
	}
	kept, err := a.programs.KeepOthers(pods)
	if err != nil {
		return fmt.Errorf("find the programs of before: %w", err)
	}
	if kept {
		log.Info("the kernel's maps are new; the programs and maps of before stay in charge until these hold everything")
		a.setKeeping(true)
	}
	return nil
}

// replacePrograms puts this agent's programs in the place of those of before, now that its maps
// hold everything.
func (a *api) replacePrograms(log *slog.Logger) {
	if !a.isKeeping() {
		return
	}
	err := a.programs.ReplaceOthers()
	a.components.Report("programs", err, "the programs and maps of before were replaced")
	if err != nil {
		log.Error("some programs and maps of before are still in charge; this is tried again", "error", err)
		return
	}
	a.setKeeping(false)
	log.Info("the programs and maps of before were replaced")
}

func (a *api) isKeeping() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.keeping
}

func (a *api) setKeeping(keeping bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.keeping = keeping
}

// isInForce reports whether everything has been heard and is in the kernel.
func (a *api) isInForce() bool {
	select {
	case <-a.inForce:
		return true
	default:
		return false
	}
}

// awaitPrograms has a new endpoint wait until its neighbours are judged by the same maps: the
// others would not know it.
func (a *api) awaitPrograms(ctx context.Context) error {
	if !a.isKeeping() {
		return nil
	}
	select {
	case <-a.inForce:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(admitWait):
		return server.Errorf(http.StatusServiceUnavailable, "the agent has new maps and has not heard all that belongs there yet; try again in a moment")
	}
}

// awaitRules waits for as long as a new endpoint may wait until the rules and identities have been
// heard.
func (a *api) awaitRules(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, admitWait)
	defer cancel()
	return a.policy.WaitHeard(ctx)
}
