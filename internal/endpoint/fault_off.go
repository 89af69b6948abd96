//go:build !faultpoints

package endpoint

import "time"

// MinOrphanGrace is the shortest --orphan-link-grace-period: less, and interfaces are removed for
// which the plugin still tries to create an endpoint.
const MinOrphanGrace = 30 * time.Second

// FaultStep returns nil: only test builds can be stopped at a step.
func FaultStep() func(string) { return nil }
