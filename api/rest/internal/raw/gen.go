// Package raw is the generated client of the agent's API: one method an operation that returns
// the bare HTTP response. Use package client instead, which reads the responses.
package raw

//go:generate go tool oapi-codegen -config client.cfg.yaml ../../../openapi.yaml
