//go:build !faultpoints

package agent

import "time"

// minOrphanGrace is the shortest --orphan-link-grace-period: less, and interfaces are removed for
// which the plugin still tries to create an endpoint.
const minOrphanGrace = 30 * time.Second

// faultStep returns nil: only test builds can be stopped at a step.
func faultStep() func(string) { return nil }
