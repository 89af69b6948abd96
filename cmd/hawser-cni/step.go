//go:build !faultpoints

package main

func step(string) {}
