// Package archtest holds the import rules of the project: which package may use which.
package archtest
